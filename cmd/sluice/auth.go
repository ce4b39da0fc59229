package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"
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
	// costliest is one of these hashes. An unknown user's password is compared with it, so that
	// names cannot be told by the time that an answer takes, if all hashes cost the same.
	costliest []byte

	mu sync.Mutex // guards what follows
	// checks bound how many passwords are checked for each address: each takes a processor for some
	// time, and an attacker tries many.
	checks map[string]*rate.Limiter
	forgot time.Time // when those that are full were forgotten
	// known are the users with passwords that were right. To check one takes a twentieth of a second of a
	// processor, and a page asks every two seconds.
	known map[string][sha256.Size]byte
}

// readUsers reads a file of names and bcrypt hashes, as htpasswd -B writes it.
func readUsers(path string) (guard, error) {
	u, err := usersOf(path)
	if err != nil {
		return nil, err
	}
	return u.ask, nil
}

func usersOf(path string) (*users, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usageError{fmt.Errorf("--users: %w", err)}
	}
	defer func() { _ = file.Close() }()
	u := &users{hashes: map[string][]byte{}, known: map[string][sha256.Size]byte{}, checks: map[string]*rate.Limiter{}}
	most := 0
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, _ := strings.Cut(line, ":")
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil || name == "" { // the line may be a password: it is not shown
			return nil, usagef("--users: line %d is no name with a bcrypt hash, as htpasswd -B writes it", n)
		}
		if u.hashes[name] = []byte(hash); cost > most {
			most, u.costliest = cost, []byte(hash)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, usageError{fmt.Errorf("--users: %w", err)}
	}
	if len(u.hashes) == 0 {
		return nil, usagef("--users: the file names no user")
	}
	return u, nil
}

const (
	// checksPerSecond and checksAtOnce are how many passwords that are not known to be right are
	// checked for an address.
	checksPerSecond, checksAtOnce = 5, 30
	// mostAddresses is how many addresses have checks of their own. The others share them. Those that have
	// not tried lately are forgotten, each forgetEvery.
	mostAddresses = 10_000
	forgetEvery   = time.Second
)

// addressOf returns what stands for an address: a user has a whole /64 of IPv6.
func addressOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := at.Addr().Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

// mayTry reports whether one more password is checked for an address.
func (u *users) mayTry(address string) bool {
	host := addressOf(address)
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); len(u.checks) >= mostAddresses && now.Sub(u.forgot) >= forgetEvery {
		u.forgot = now
		maps.DeleteFunc(u.checks, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= checksAtOnce })
	}
	if len(u.checks) >= mostAddresses && u.checks[host] == nil {
		host = ""
	}
	if u.checks[host] == nil {
		u.checks[host] = rate.NewLimiter(checksPerSecond, checksAtOnce)
	}
	return u.checks[host].Allow()
}

// ask is the guard.
func (u *users) ask(w http.ResponseWriter, r *http.Request) (string, bool) {
	name, password, given := r.BasicAuth()
	sum := sha256.Sum256([]byte(password))
	switch {
	case given && u.isKnown(name, sum):
		return name, true
	case given && !u.mayTry(r.RemoteAddr):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "Too many passwords were tried. Wait a second.", http.StatusTooManyRequests)
		return "", false
	case given && u.isRight(name, password, sum):
		return name, true
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="sluice", charset="UTF-8"`)
	http.Error(w, "A name and a password are needed.", http.StatusUnauthorized)
	return "", false
}

// isKnown reports whether this password of the user has been right before.
func (u *users) isKnown(name string, sum [sha256.Size]byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	known, ok := u.known[name]
	return ok && known == sum
}

func (u *users) isRight(name, password string, sum [sha256.Size]byte) bool {
	hash, ok := u.hashes[name]
	if !ok {
		hash = u.costliest
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !ok {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known[name] = sum
	return true
}
