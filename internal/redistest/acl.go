package redistest

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// module is the library's module path.
const module = "github.com/sluice-go/sluice"

// OpenChannels are settings of a server on which a new user may use every channel, as is the
// default of Redis 6.2: a rule has to close them before it opens some.
var OpenChannels = []string{"--acl-pubsub-default", "allchannels"}

// Rules returns the access rules of docs/operations.md, one for each ACL SETUSER line: the
// words after the user's name, in order.
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
	s, err := start(dir, append(settings, OpenChannels...))
	if err != nil {
		return nil, err
	}
	s.connect = s.connectAsUser
	return s, s.restrict(authority)
}

// restrict creates the user of the documented rules, and enables TLS.
func (s *Server) restrict(a *Authority) error {
	rules, err := readRules()
	if err != nil {
		return err
	}
	user := []any{"ACL", "SETUSER", "sluice"}
	for _, word := range slices.Concat(rules[:6]...) { // the others are for Clusters and sentinels
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

// prefixes replaces the prefix of a documented pattern by those that tests use.
var prefixes = map[string]*strings.Replacer{
	"Lock:":  strings.NewReplacer("Lock:", "L-", "Queue:", "Test"),
	"Queue:": strings.NewReplacer("Lock:", "Test", "Queue:", "Test"),
}

// connectAsUser returns a client of the guarded server.
func (s *Server) connectAsUser(dial Dialer) client {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.tlsAddr, TLSConfig: s.tls, Dialer: dial, Username: "sluice", Password: "CHANGE-ME", ReadBufferSize: Buffers, WriteBufferSize: Buffers,
	})
	rdb.AddHook(splitHook{redis.NewClient(&redis.Options{Addr: s.Addr, ReadBufferSize: Buffers, WriteBufferSize: Buffers})})
	return rdb
}

// splitHook sends the commands of tests through an administrator's client.
type splitHook struct{ admin *redis.Client }

// isLibrary says whether a command comes from the library, or sets up a connection.
func isLibrary(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "auth":
		return true
	case "client":
		return strings.HasPrefix(cmd.FullName(), "client set") || strings.HasPrefix(cmd.FullName(), "client maint")
	}
	if kind := reflect.TypeOf(cmd); kind.Kind() == reflect.Pointer {
		from := kind.Elem().PkgPath()
		return from == module || strings.HasPrefix(from, module+"/")
	}
	return false
}

func (splitHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h splitHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isLibrary(cmd) {
			return next(ctx, cmd)
		}
		return h.admin.Process(ctx, cmd)
	}
}

func (h splitHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var library []redis.Cmder
		pipe := h.admin.Pipeline()
		for _, cmd := range cmds {
			if isLibrary(cmd) {
				library = append(library, cmd)
			} else {
				_ = pipe.Process(ctx, cmd)
			}
		}
		if len(library) == len(cmds) {
			return next(ctx, cmds)
		}
		_, err := pipe.Exec(ctx)
		if len(library) > 0 {
			err = next(ctx, library)
		}
		return err
	}
}
