package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

// guard returns who has sent a request, or answers it, and returns false, if that one may not ask.
type guard func(w http.ResponseWriter, r *http.Request) (user string, ok bool)

type userKey struct{}

// userOf returns who has sent a request; "" if it was not asked.
func userOf(r *http.Request) string {
	user, _ := r.Context().Value(userKey{}).(string)
	return user
}

// protect has a handler answer only those that a guard lets through, except for one path; all without a
// guard.
func protect(handler http.Handler, g guard, open string) http.Handler {
	if g == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != open {
			user, ok := g(w, r)
			if !ok {
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
		}
		handler.ServeHTTP(w, r)
	})
}

// byHeader is for a proxy in front that names the user.
func byHeader(name string) guard {
	return func(w http.ResponseWriter, r *http.Request) (string, bool) {
		user := r.Header.Get(name)
		if user == "" {
			http.Error(w, "The proxy in front names no user.", http.StatusUnauthorized)
		}
		return user, user != ""
	}
}

// users are those who may ask, with the bcrypt hashes of their passwords.
type users struct {
	hashes map[string][]byte

	mu sync.Mutex // guards known
	// known are the users with passwords that were right. To check one takes a twentieth of a second of a
	// processor, and a page asks every two seconds.
	known map[string][sha256.Size]byte
}

// absent is the hash of no password. It is checked for unknown users, so that their names cannot be told
// by the time that an answer takes.
var absent = sync.OnceValue(func() []byte {
	hash, _ := bcrypt.GenerateFromPassword([]byte("no user has this password"), bcrypt.DefaultCost) // it is short enough
	return hash
})

// readUsers reads a file of names and bcrypt hashes, as htpasswd -B writes it.
func readUsers(path string) (guard, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usageError{fmt.Errorf("--users: %w", err)}
	}
	defer func() { _ = file.Close() }()
	u := &users{hashes: map[string][]byte{}, known: map[string][sha256.Size]byte{}}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, _ := strings.Cut(line, ":")
		if _, err := bcrypt.Cost([]byte(hash)); err != nil || name == "" { // the line may be a password: it is not shown
			return nil, usagef("--users: line %d is no name with a bcrypt hash, as htpasswd -B writes it", n)
		}
		u.hashes[name] = []byte(hash)
	}
	if err := lines.Err(); err != nil {
		return nil, usageError{fmt.Errorf("--users: %w", err)}
	}
	if len(u.hashes) == 0 {
		return nil, usagef("--users: the file names no user")
	}
	return u.ask, nil
}

// ask is the guard.
func (u *users) ask(w http.ResponseWriter, r *http.Request) (string, bool) {
	name, password, given := r.BasicAuth()
	if given && u.isRight(name, password) {
		return name, true
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="sluice", charset="UTF-8"`)
	http.Error(w, "A name and a password are needed.", http.StatusUnauthorized)
	return "", false
}

func (u *users) isRight(name, password string) bool {
	sum := sha256.Sum256([]byte(password))
	u.mu.Lock()
	known, ok := u.known[name]
	u.mu.Unlock()
	if ok && known == sum {
		return true
	}
	hash, ok := u.hashes[name]
	if !ok {
		hash = absent()
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !ok {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known[name] = sum
	return true
}
