package redistest

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Rules returns the access rules of docs/operations.md, as a user would paste them:
// of each ACL SETUSER line there the words after the user's name, in order.
func Rules(t testing.TB) (rules [][]string) {
	t.Helper()
	rules, err := readRules()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func readRules() (rules [][]string, err error) {
	_, file, _, _ := runtime.Caller(0)
	doc, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../docs/operations.md"))
	for _, line := range regexp.MustCompile(`(?m)^redis-cli (?:-p \d+ )?ACL SETUSER sluice (.*)$`).FindAllStringSubmatch(string(doc), -1) {
		rules = append(rules, strings.Fields(strings.ReplaceAll(line[1], "'", "")))
	}
	return rules, err
}

// Guarded returns the shared server on which the library has no more rights than
// docs/operations.md says, and speaks TLS. What the library sends through its clients
// goes out as the user of the documented rule, and so do subscriptions; what the test
// itself sends, as an administrator. The rule's patterns stand there for the prefixes
// of tests too. Addr is the administrator's, without TLS.
func Guarded(t testing.TB) *Server {
	t.Helper()
	return shared.guarded.get(t)
}

func startGuarded() (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	authority, err := NewAuthority()
	if err != nil {
		return nil, err
	}
	settings, err := authority.settings(dir, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, err
	}
	s, err := start(dir, settings)
	if err != nil {
		return nil, err
	}
	s.connect = s.escorted
	return s, s.guard(authority)
}

// guard sets the user and TLS up.
func (s *Server) guard(a *Authority) error {
	rules, err := readRules()
	if err != nil {
		return err
	}
	user := []any{"ACL", "SETUSER", "sluice"}
	for _, word := range slices.Concat(rules[:4]...) { // without those of Clusters and sentinels
		user = append(user, word)
		if strings.ContainsAny(word[:1], "~&") {
			user = append(user, prefixes["Lock:"].Replace(word), prefixes["Queue:"].Replace(word))
		}
	}
	admin := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = admin.Close() }()
	if err := admin.Do(context.Background(), user...).Err(); err != nil {
		return err
	}
	return s.secure(a)
}

// prefixes makes a documented pattern one for the prefixes that tests use.
var prefixes = map[string]*strings.Replacer{
	"Lock:":  strings.NewReplacer("Lock:", "L-", "Queue:", "Test"),
	"Queue:": strings.NewReplacer("Lock:", "Test", "Queue:", "Test"),
}

// escorted is a client of the guarded server.
func (s *Server) escorted(dial dialer) connected {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.tlsAddr, TLSConfig: s.tls, Dialer: dial, Username: "sluice", Password: "CHANGE-ME",
	})
	rdb.AddHook(escort{redis.NewClient(&redis.Options{Addr: s.Addr})})
	return rdb
}

// escort sends what is not the library's own through an administrator's client.
type escort struct{ admin *redis.Client }

// isOwn says whether a command is the library's, or one by which a connection is set
// up.
func isOwn(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "auth":
		return true
	case "client":
		return strings.HasPrefix(cmd.FullName(), "client set") || strings.HasPrefix(cmd.FullName(), "client maint")
	}
	return fmt.Sprintf("%T", cmd) == "*redisexec.command"
}

func (escort) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e escort) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isOwn(cmd) {
			return next(ctx, cmd)
		}
		return e.admin.Process(ctx, cmd)
	}
}

func (e escort) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var own []redis.Cmder
		pipe := e.admin.Pipeline()
		for _, cmd := range cmds {
			if isOwn(cmd) {
				own = append(own, cmd)
			} else {
				_ = pipe.Process(ctx, cmd)
			}
		}
		if len(own) == len(cmds) {
			return next(ctx, cmds)
		}
		_, err := pipe.Exec(ctx)
		if len(own) > 0 {
			err = next(ctx, own)
		}
		return err
	}
}
