package access

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// The canaries: what is printed must not hold them, nor text that looks like a lock's
// token.
const (
	canaryPayload  = "canary-of-a-payload"
	canaryPassword = "canary-of-a-password"
)

var canaries = regexp.MustCompile(canaryPayload + "|" + canaryPassword + "|[A-Z2-7]{26}")

// printed is what any logger except a Worker's own gets during the tests: that of
// go-redis, of package log, and slog's default.
var printed systest.Buffer

// forRedis makes printed a logger for go-redis.
type forRedis struct{}

// Printf implements the logger of go-redis.
func (forRedis) Printf(_ context.Context, format string, args ...any) {
	_, _ = fmt.Fprintf(&printed, format+"\n", args...)
}

// watchLoggers has them write to printed. It is called before any test.
func watchLoggers() {
	redis.SetLogger(forRedis{})
	slog.SetDefault(slog.New(slog.NewTextHandler(&printed, nil)))
}

// silent requires that nothing which is printed of v, or of what it wraps, has a
// canary in it.
func silent(t *testing.T, where string, v any) {
	t.Helper()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		text := fmt.Sprintf(format, v)
		if plain, err := hex.DecodeString(text); err == nil {
			text = string(plain) // in hex, the digest of a script may look like a token
		}
		require.NotRegexp(t, canaries, text, where+" as "+format)
	}
	if text, err := json.Marshal(v); err == nil {
		require.NotRegexp(t, canaries, string(text), where+" as JSON")
	}
	switch e := v.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			silent(t, where, inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			silent(t, where, inner)
		}
	}
}

// mishap is a way in which all may go wrong.
type mishap struct {
	name string
	// start returns a client, and what makes it fail; nil if it does already.
	start func(t *testing.T) (redis.UniversalClient, func())
	// fine says that operations may succeed all the same.
	fine bool
}

// faulty is a mishap of a client's connections.
func faulty(strike func(*redistest.Faults)) func(*testing.T) (redis.UniversalClient, func()) {
	return func(t *testing.T) (redis.UniversalClient, func()) {
		rdb, faults := redistest.Start(t).Faulty(t)
		return rdb, func() { strike(faults) }
	}
}

// commanded is a mishap of a server that a command to it brings about.
func commanded(commands ...string) func(*testing.T) (redis.UniversalClient, func()) {
	return func(t *testing.T) (redis.UniversalClient, func()) {
		s := redistest.Start(t)
		admin := s.Client(t)
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "user", "on", ">"+canaryPassword, "~*", "&*", "+@all").Err())
		rdb := systest.Dial(t, redis.Options{Addr: s.Addr, Username: "user", Password: canaryPassword})
		return rdb, func() {
			for _, command := range commands {
				var args []any
				for _, word := range strings.Fields(command) {
					args = append(args, word)
				}
				require.NoError(t, admin.Do(t.Context(), args...).Err())
			}
		}
	}
}

// answering is a server that gives the same answer to every command but those that set
// a connection up.
func answering(answer func(args []string) string) func(*testing.T) (redis.UniversalClient, func()) {
	return func(t *testing.T) (redis.UniversalClient, func()) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go answerAll(conn, answer)
			}
		}()
		return systest.Dial(t, redis.Options{Addr: listener.Addr().String()}), nil
	}
}

func answerAll(conn net.Conn, answer func(args []string) string) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		var words int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &words); err != nil {
			return
		}
		args := make([]string, words)
		for i := range args {
			var size int
			if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
				return
			}
			word := make([]byte, size+2)
			if _, err := io.ReadFull(r, word); err != nil {
				return
			}
			args[i] = string(word[:size])
		}
		reply := answer(args)
		switch args[0] {
		case "hello", "client":
			reply = "-ERR unknown command\r\n"
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

func mishaps() []mishap {
	return []mishap{
		{name: "no server", start: func(t *testing.T) (redis.UniversalClient, func()) {
			return systest.Dial(t, redis.Options{Addr: "127.0.0.1:1", Password: canaryPassword}), nil
		}},
		{name: "wrong password", start: func(t *testing.T) (redis.UniversalClient, func()) {
			s := redistest.Start(t)
			at := url.URL{Scheme: "redis", User: url.UserPassword("user", canaryPassword), Host: s.Addr}
			options, err := redis.ParseURL(at.String())
			require.NoError(t, err)
			return systest.Dial(t, *options), nil
		}},
		{name: "password to a server without", start: func(t *testing.T) (redis.UniversalClient, func()) {
			s := redistest.Start(t, "--rename-command", "HELLO", "", "--rename-command", "AUTH", "")
			return systest.Dial(t, redis.Options{Addr: s.Addr, Username: "user", Password: canaryPassword}), nil
		}},
		{name: "scripts unknown", start: func(t *testing.T) (redis.UniversalClient, func()) {
			s := redistest.Start(t, "--rename-command", "EVALSHA", "", "--rename-command", "EVAL", "", "--rename-command", "SET", "")
			return s.Client(t), nil
		}},
		{name: "foreign keys", fine: true, start: func(t *testing.T) (redis.UniversalClient, func()) {
			rdb := redistest.Start(t).Client(t)
			return rdb, func() {
				for _, key := range rdb.Keys(t.Context(), "*").Val() {
					rdb.Del(t.Context(), key)
					rdb.LPush(t.Context(), key, canaryPayload)
				}
			}
		}},
		{name: "foreign fields", fine: true, start: func(t *testing.T) (redis.UniversalClient, func()) {
			rdb := redistest.Start(t).Client(t)
			return rdb, func() {
				for _, key := range rdb.Keys(t.Context(), "Queue:*").Val() {
					for _, id := range rdb.ZRange(t.Context(), key, 0, -1).Val() {
						rdb.HSet(t.Context(), "{"+key+"}:state", id, canaryPayload)
					}
				}
			}
		}},
		{name: "full", fine: true, start: commanded("CONFIG SET maxmemory 1")},
		{name: "denied", start: commanded("ACL SETUSER user -@all")},
		{name: "denied in scripts", fine: true, start: commanded("ACL SETUSER user -hset -zadd -get -set")},
		{name: "keys denied", start: commanded("ACL SETUSER user resetkeys resetchannels")},
		{name: "password changed", start: commanded("ACL SETUSER user resetpass >other", "CLIENT KILL USER user")},
		{name: "script flush", fine: true, start: commanded("SCRIPT FLUSH")},
		{name: "nothing left", fine: true, start: commanded("FLUSHALL")},
		{name: "stalled", start: faulty(func(f *redistest.Faults) { f.Stall() })},
		{name: "half-open", start: faulty(func(f *redistest.Faults) { f.Cut() }), fine: true},
		{name: "reply lost", start: faulty(func(f *redistest.Faults) { f.DropReply(1) }), fine: true},
		{name: "request lost", start: faulty(func(f *redistest.Faults) { f.DropRequest(1) }), fine: true},
		{name: "moved", start: answering(func([]string) string { return "-MOVED 1 127.0.0.1:1\r\n" })},
		{name: "script lost", start: answering(func([]string) string { return "-NOSCRIPT No matching script\r\n" })},
		{name: "arguments repeated", start: answering(func(args []string) string {
			return fmt.Sprintf("-ERR unknown command '%s', with args beginning with: '%s'\r\n", args[0], strings.Join(args[1:], "' '"))
		})},
		{name: "garbage", start: answering(func([]string) string { return canaryPayload + "\r\n" })},
		{name: "wrong kind", start: answering(func([]string) string {
			return "*2\r\n$" + strconv.Itoa(len(canaryPayload)) + "\r\n" + canaryPayload + "\r\n:1\r\n"
		})},
		{name: "bad length", start: answering(func([]string) string { return "$" + canaryPayload + "\r\n" })},
		{name: "bad number", start: answering(func([]string) string { return ":" + canaryPayload + "\r\n" })},
		{name: "bad array", start: answering(func([]string) string { return "*" + canaryPayload + "\r\n" })},
	}
}

// TestAccess_NothingPrintsASecret has everything go wrong in every way, and looks for
// tokens, payloads and passwords in all that can be printed of it: errors with all that
// they wrap, what a Worker logs, what go-redis logs, and handles.
func TestAccess_NothingPrintsASecret(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	require.Regexp(t, canaries, aToken(t)) // else the pattern would find nothing
	t.Run("mishaps", func(t *testing.T) {
		for _, m := range mishaps() {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				rdb, strike := m.start(t)
				failed := everything(t, rdb, strike)
				if !m.fine {
					require.Greater(t, failed, 20, "hardly anything went wrong")
				}
			})
		}
	})
	require.Contains(t, printed.String(), "failed to dial") // that logger is watched
	require.NotRegexp(t, canaries, printed.String())
}

func aToken(t *testing.T) string {
	k, err := systest.NewLocker(t, redistest.Mini(t).Client(t)).TryLock(t.Context(), redistest.Name(t))
	require.NoError(t, err)
	return k.Token()
}

// everything calls every operation, and says how many failed.
func everything(t *testing.T, rdb redis.UniversalClient, strike func()) (failed int) {
	l := systest.NewLocker(t, rdb, sluice.WithTTL(2*time.Second))
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	var k, fenced *sluice.Lock
	var table []operations.Ready
	for _, op := range operations.Table {
		f := operations.New(t, rdb)
		f.Locker, f.Entry.Payload = l, []byte(canaryPayload)
		if strike != nil {
			op.Prepare(t, f)
		}
		table = append(table, operations.Ready{Operation: op, On: f})
	}
	if strike != nil {
		_, err := systest.NewLocker(t, rdb).Lock(t.Context(), "taken")
		require.NoError(t, err)
		k, err = l.Lock(t.Context(), "held", sluice.WithAutoRenew())
		require.NoError(t, err)
		fenced, err = l.Lock(t.Context(), "fenced", sluice.WithFencing())
		require.NoError(t, err)
		strike()
	}
	call := func(name string, run func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := run(ctx)
		if err != nil {
			failed++
		}
		silent(t, name, err)
	}
	for name, run := range odd(l, k, fenced, q) {
		call(name, run)
	}
	silent(t, "a Worker's log", failAll(t, q))
	errs := make([]error, len(table))
	var all sync.WaitGroup
	for i, op := range table {
		if op.EndsLocker() {
			all.Wait()
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, errs[i] = op.Do(ctx)
		})
	}
	all.Wait()
	for i, op := range table {
		call(op.Name, func(context.Context) error { return errs[i] })
		for _, handle := range []any{l, k, fenced, q, op.On.Lock, op.On.Set} {
			silent(t, "a handle", handle)
		}
	}
	if k != nil {
		silent(t, "the cause of a lock's context", context.Cause(k.Context()))
	}
	call("lock of a closed one", func(ctx context.Context) error { _, err := l.Lock(ctx, "a"); return err })
	return failed
}

// tokenOr is k's token, or one that no lock has.
func tokenOr(k *sluice.Lock) string {
	if k == nil {
		return strings.Repeat("TOKEN234", 4)[:26]
	}
	return k.Token()
}

// odd are calls beside those of the table.
func odd(l *sluice.Locker, k, fenced *sluice.Lock, q *sluice.Queue) map[string]func(context.Context) error {
	task := sluice.Task{ID: "new", Payload: []byte(canaryPayload)}
	stale := sluice.Entry{ID: "stale", Score: 5, Payload: task.Payload}
	return map[string]func(context.Context) error{
		"lock held":    func(ctx context.Context) error { _, err := l.Lock(ctx, "held"); return err },
		"lock taken":   func(ctx context.Context) error { _, err := l.Lock(ctx, "taken"); return err },
		"fenced lock":  func(ctx context.Context) error { _, err := l.TryLock(ctx, "c", sluice.WithFencing()); return err },
		"lock all but": func(ctx context.Context) error { _, err := l.LockAll(ctx, []string{"a3", "taken"}); return err },
		"do all": func(ctx context.Context) error {
			return l.DoAll(ctx, []string{"d1", "d2"}, func(ctx context.Context) error { return fmt.Errorf("%+v", sluice.LockFromContext(ctx, "d1")) })
		},
		"adopt fenced": func(ctx context.Context) error {
			_, err := l.Adopt(ctx, "held", tokenOr(k), sluice.WithFencing())
			return err
		},
		"adopt none":   func(ctx context.Context) error { _, err := l.Adopt(ctx, "free", tokenOr(k)); return err },
		"adopt odd":    func(ctx context.Context) error { _, err := l.Adopt(ctx, "held", tokenOr(k)+"A"); return err },
		"permit":       func(ctx context.Context) error { _, err := l.Lock(ctx, "p", sluice.WithPermits(2)); return err },
		"other permit": func(ctx context.Context) error { _, err := l.Lock(ctx, "held", sluice.WithPermits(2)); return err },
		"force permit": func(ctx context.Context) error { _, err := l.ForceUnlock(ctx, "p"); return err },
		"unlock twice": func(ctx context.Context) error { return errors.Join(k.Unlock(ctx), k.Unlock(ctx)) },
		"unlock fence": func(ctx context.Context) error { return fenced.Unlock(ctx) },
		"enqueue twice": func(ctx context.Context) error {
			_, err := q.EnqueueBatch(ctx, []sluice.Task{task, task})
			return err
		},
		"too large": func(ctx context.Context) error {
			_, err := q.Enqueue(ctx, sluice.Task{ID: "x", Payload: bytes.Repeat([]byte(canaryPayload), 100_000)})
			return err
		},
		"dequeue stale": func(ctx context.Context) error { return q.Dequeue(ctx, stale) },
	}
}

// failAll runs a worker for a while, whose handlers fail in every way, and returns what it
// logs and its error.
func failAll(t *testing.T, q *sluice.Queue) string {
	var log systest.Buffer
	n := 0
	w := &sluice.Worker{
		Queue: q, Concurrency: 1, Lease: time.Second, Grace: time.Millisecond,
		Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})),
		Handler: func(ctx context.Context, e sluice.Entry) error {
			switch n++; n % 4 {
			case 0:
				return errors.New("failed")
			case 1:
				return sluice.Permanent(errors.New("hopeless"))
			case 2:
				panic(errors.New("a bug"))
			}
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := w.Run(ctx)
	silent(t, "run", err)
	silent(t, "a worker's counters", w.Stats())
	return log.String()
}
