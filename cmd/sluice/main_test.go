package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if os.Getenv(mainChild) != "" {
		main()
	}
	redistest.Main(m)
}

// shell calls the program as a shell does.
type shell struct {
	t     testing.TB
	env   map[string]string
	input string
	// before is called before the input is read.
	before func()
	// interactive is a terminal at which a person answers.
	interactive bool
}

// answer is what a call printed, and its exit code.
type answer struct {
	out, err string
	code     int
}

// late is an input before whose reading something happens.
type late struct {
	io.Reader
	before func()
}

func (l late) Read(to []byte) (int, error) {
	if l.before != nil {
		l.before()
	}
	return l.Reader.Read(to)
}

func (s shell) run(args ...string) answer {
	s.t.Helper()
	var out, errOut bytes.Buffer
	a := &app{in: late{strings.NewReader(s.input), s.before}, out: &output{Writer: &out}, errOut: &errOut, interactive: s.interactive, lookupEnv: func(name string) (string, bool) {
		value, ok := s.env[name]
		return value, ok
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	code := a.run(ctx, args)
	return answer{out.String(), errOut.String(), code}
}

// ok runs a command that has to succeed, and returns what it printed.
func (s shell) ok(args ...string) string {
	s.t.Helper()
	got := s.run(args...)
	require.Zero(s.t, got.code, "%q: %s%s", args, got.out, got.err)
	return got.out
}

// json runs a command with --json that ends with this exit code, and decodes what it printed.
func (s shell) json(code int, into any, args ...string) {
	s.t.Helper()
	got := s.run(append(args, "--json")...)
	require.Equal(s.t, code, got.code, "%q: %s%s", args, got.out, got.err)
	decoder := json.NewDecoder(strings.NewReader(got.out))
	decoder.DisallowUnknownFields()
	require.NoError(s.t, decoder.Decode(into), got.out)
}

// stage is a server of its own with queues and locks on it.
type stage struct {
	*testing.T
	shell
	server *redistest.Server
	rdb    redis.UniversalClient
}

func newStage(t *testing.T) stage {
	t.Helper()
	server := redistest.Start(t, redistest.OpenChannels...)
	return stage{t, shell{t: t, env: map[string]string{"SLUICE_URL": "redis://" + server.Addr}}, server, server.Client(t)}
}

func (s stage) queue(name string, opts ...sluice.QueueOption) *sluice.Queue {
	s.Helper()
	q, err := sluice.NewQueue(s.rdb, name, opts...)
	require.NoError(s, err)
	return q
}

// fill puts tasks into a queue: two dead, one leased, two due, one scheduled.
func (s stage) fill(q *sluice.Queue) {
	s.Helper()
	ctx := s.Context()
	add := func(id string, delay time.Duration) {
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("payload-of-" + id), Delay: delay})
		require.NoError(s, err)
	}
	claim := func() sluice.Entry {
		entries, err := q.Claim(ctx, 1, time.Hour)
		require.NoError(s, err)
		require.Len(s, entries, 1)
		return entries[0]
	}
	for _, id := range []string{"dead-1", "dead-2"} {
		add(id, 0)
		require.NoError(s, q.Bury(ctx, "dial tcp: connection refused by "+id, claim()))
	}
	add("leased-1", 0)
	claim()
	add("due-1", 0)
	add("due-2", 0)
	add("later-1", time.Hour)
}

// finish has a task of a queue done, with the result that a handler has recorded.
// The task is due before those of fill and staff.
func (s stage) finish(q *sluice.Queue, id, result string) {
	s.Helper()
	ctx := s.Context()
	_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("payload-of-" + id), At: s.rdb.Time(ctx).Val().Add(-2 * time.Hour)})
	require.NoError(s, err)
	entries, err := q.Claim(ctx, 1, time.Hour)
	require.NoError(s, err)
	require.Len(s, entries, 1)
	require.Equal(s, id, entries[0].ID)
	require.NoError(s, q.Dequeue(ctx, entries[0]))
	if result != "" {
		require.NoError(s, s.rdb.HSet(ctx, "{Queue:"+q.Name()+"}:results", id, "1 "+result).Err())
	}
}

// staff has a Worker that is not there say that it lives and has one task of a queue, another one
// that is gone have a second, and a third task fail.
func (s stage) staff(q *sluice.Queue) {
	s.Helper()
	s.staffBy(q, "WORKER01", "packer")
}

// staffBy is staff, with what the Worker says of itself; its error is the text, too.
func (s stage) staffBy(q *sluice.Queue, worker, text string) {
	s.Helper()
	ctx, key := s.Context(), "{Queue:"+q.Name()+"}"
	now := s.rdb.Time(ctx).Val()
	said, err := json.Marshal(map[string]any{
		"id": worker, "label": text, "host": "host of " + text, "version": "v0.3.0 " + text, "pid": 4711, "concurrency": 16, "running": 2, "stuck": 1, "started": int64(1767323045000), "counts": 45,
	})
	require.NoError(s, err)
	require.NoError(s, s.rdb.ZAdd(ctx, key+":workers", redis.Z{Score: float64(now.Unix()) + 45, Member: string(said)}).Err())
	for i, id := range []string{"leased-2", "leased-3", "retried-1"} {
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, At: now.Add(-time.Hour)})
		require.NoError(s, err)
		entries, err := q.Claim(ctx, 1, 2*time.Hour)
		require.NoError(s, err)
		if id == "retried-1" {
			require.NoError(s, q.Retry(ctx, time.Hour, "dial tcp: i/o timeout of "+text, entries[0]))
			continue
		}
		claimed := s.rdb.HGet(ctx, key+":state", id).Val()
		require.NoError(s, s.rdb.HSet(ctx, key+":state", id, claimed+fmt.Sprint("WORKER0", i+1)).Err())
	}
}

// stateOf returns the state of a task.
func (s stage) stateOf(q *sluice.Queue, id string) string {
	s.Helper()
	e, err := q.Get(s.Context(), id)
	if err != nil {
		require.ErrorIs(s, err, sluice.ErrNotFound)
	}
	return e.State.String()
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	spans = regexp.MustCompile(`\b\d+(\.\d+)?(ms|s)\b|\b\d+(d|h|m)\d\d(h|m|s)\b|"lateness_seconds": [0-9.e-]+|"ttl_seconds": [0-9.]+`)
	ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// golden compares text with a file, where times, durations and addresses are left out.
func golden(t *testing.T, name, text string) {
	t.Helper()
	text = times.ReplaceAllString(text, "TIME")
	text = spans.ReplaceAllStringFunc(text, func(s string) string {
		if before, _, ok := strings.Cut(s, ": "); ok {
			return before + ": N"
		}
		return "SPAN"
	})
	text = ports.ReplaceAllString(text, "HOST")
	text = regexp.MustCompile(`[ ]{2,}`).ReplaceAllString(text, "  ") // the widths of columns depend on what was left out
	path := "testdata/" + name + ".golden"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "go test -run %s -update writes %s anew", t.Name(), path)
}

// TestGolden has what the commands print, as text and as JSON. A change of the JSON breaks scripts.
func TestGolden(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders", sluice.WithRetention(time.Hour))
	s.fill(q)
	s.finish(q, "done-1", "result-of-done-1")
	s.finish(q, "done-2", "")
	s.fill(s.queue("mails"))
	locker, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	_, err = locker.Lock(t.Context(), "stock:phone", sluice.WithTTL(time.Minute), sluice.WithOwner("till-7"))
	require.NoError(t, err)
	s.takePermits("gate", 2)
	s.line("Lock:stock:phone", 1)
	s.line("Lock:gate", 2)
	s.staff(q)
	s.line("Queue:orders", 3)

	var text strings.Builder
	for _, line := range []string{
		"queues", "queues --wide", "workers", "workers orders", "ls orders", "ls orders --state scheduled", "ls orders --state leased", "ls orders --state leased --until 1h", "ls orders --state active", "ls orders --state dead", "ls orders --state dead --reason nothing",
		"ls orders --state done", "ls orders --state done --payload", "ls orders --state done --wide --contains 1", "ls orders --state done --until 1h", "ls orders --state completed", "ls orders --state done --reason timeout", "ls mails --state done",
		"ls mails --state dead --reason dead-2 --payload", "get orders dead-1", "get orders due-1 --payload", "get orders leased-1", "get orders leased-2", "get orders retried-1", "get orders done-1", "get orders done-1 --payload", "get orders done-2 --payload", "get orders none", "ls typo", "worker", "queue ls",
		"locks", "lock stock:phone", "lock gate", "lock none",
		"cancel orders due-1 none done-2 --dry-run", "cancel orders done-2", "run orders --all --state done", "run orders done-1", "run orders later-1", "delay orders later-1 --for 30m", "bury orders later-1 --why poison",
		"revive orders --all --reason connection --dry-run", "revive orders --all", "revive orders --all --confirm 2", "revive orders --all --confirm 3",
		"drop orders --all --yes", "drop orders --all --yes", "pause orders --for 1h", "queues", "resume orders",
		"limit orders", "limit orders --running 1 --rate 10/s --burst 5 --dry-run", "limit orders --running 1 --rate 10/s --burst 5", "limit orders", "queues",
		"limit orders --rate 100/m", "limit orders --running 0", "limit orders --rate 10", "limit orders --off --dry-run", "limit orders --off", "limit typo",
		"purge orders", "purge orders --confirm wrong", "purge orders --dry-run",
		"unlock stock:phone", "unlock stock:phone --force --dry-run", "unlock stock:phone --force", "unlock stock:phone --force", "unlock gate --force", "lock gate", "acl", "acl --write --cluster --queue-prefix eu-", "purge orders --confirm orders", "queues",
	} {
		got := s.run(strings.Fields(line)...)
		fmt.Fprintf(&text, "$ sluice %s\n%s%s", line, got.out, got.err)
		if got.code != 0 {
			fmt.Fprintf(&text, "(exit code %d)\n", got.code)
		}
	}
	golden(t, "text", text.String())
}

func TestGolden_JSON(t *testing.T) {
	s := newStage(t)
	s.fill(s.queue("orders"))
	s.finish(s.queue("orders", sluice.WithRetention(time.Hour)), "done-1", "result-of-done-1")
	locker, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	_, err = locker.Lock(t.Context(), "stock:phone", sluice.WithTTL(time.Minute), sluice.WithOwner("till-7"))
	require.NoError(t, err)
	s.takePermits("gate", 2)
	s.line("Lock:gate", 2)
	s.staff(s.queue("orders"))
	s.line("Queue:orders", 3)
	var text strings.Builder
	for _, line := range []string{
		"queues", "top --frames 1", "workers", "ls orders --state due --payload", "ls orders --state scheduled", "ls orders --state leased", "ls orders --state dead", "ls orders --state done", "ls orders --state done --payload", "get orders done-1", "get orders dead-1", "get orders due-1 --payload",
		"locks", "lock stock:phone", "lock gate", "cancel orders due-1 none", "revive orders --all --dry-run", "revive orders --all --yes", "bury orders due-2",
		"cancel orders done-1", "pause orders", "resume orders", "limit orders", "limit orders --running 1 --rate 10/500ms", "queues", "limit orders --off", "purge orders --dry-run", "unlock stock:phone --force", "acl",
	} {
		got := s.run(append(strings.Fields(line), "--json")...)
		require.True(t, json.Valid([]byte(got.out)), "%s: %s%s", line, got.out, got.err)
		fmt.Fprintf(&text, "$ sluice %s --json\n%s", line, got.out)
	}
	golden(t, "json", text.String())
}

// TestExitCodes has the codes that scripts rely on.
func TestExitCodes(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.finish(s.queue("orders", sluice.WithRetention(time.Hour)), "done-1", "")
	require.NoError(t, s.rdb.Set(t.Context(), "Queue:foreign", "a string", 0).Err())
	require.NoError(t, s.rdb.Do(t.Context(), "ACL", "SETUSER", "nobody", "on", ">pw", "+ping").Err())
	for _, c := range []struct {
		line string
		code int
	}{
		{"", exitOK},
		{"version", exitOK},
		{"ls orders --state dead", exitOK},
		{"queues --frobnicate", exitUsage},
		{"frobnicate", exitUsage},
		{"ls", exitUsage},
		{"ls orders --state done", exitOK},
		{"ls orders --state asleep", exitUsage},
		{"ls orders --state done --reason x", exitUsage},
		{"cancel orders --all --state done --reason x", exitUsage},
		{"run orders --all --state done", exitUsage},
		{"revive orders --all --state done", exitUsage},
		{"ls orders --limit 0", exitUsage},
		{"ls orders --reason x", exitOK},
		{"ls orders --until -5m", exitUsage},
		{"ls orders --until soon", exitUsage},
		{"workers orders mails", exitUsage},
		{"workers", exitOK},
		{"ls orders --after nonsense", exitUsage},
		{"ls {bad", exitUsage},
		{"get orders \"x --quoted", exitUsage},
		{"cancel orders", exitUsage},
		{"cancel orders a --all", exitUsage},
		{"cancel orders --all", exitUsage},
		{"revive orders --all --state due", exitUsage},
		{"drop orders a --reason x", exitUsage},
		{"delay orders a", exitUsage},
		{"unlock a", exitUsage},
		{"locks --limit 0", exitUsage},
		{"queues --progress sometimes", exitUsage},
		{"queues --url http://x", exitUsage},
		{"queues --password-file /no/such", exitUsage},
		{"top --interval 1ms", exitUsage},
		{"limit", exitUsage},
		{"limit orders mails --off", exitUsage},
		{"limit orders --running 0", exitUsage},
		{"limit orders --running x", exitUsage},
		{"limit orders --rate 10", exitUsage},
		{"limit orders --rate=", exitUsage},
		{"limit orders --burst 5", exitUsage},
		{"limit orders --running 3 --burst 5", exitUsage},
		{"limit orders --off --rate 10/s", exitUsage},
		{"limit orders --dry-run", exitUsage},
		{"limit orders --running 3 --dry-run", exitOK},
		{"serve --addr nonsense", exitUsage},
		{"get orders none", exitNotFound},
		{"run orders dead-1", exitNotFound},
		{"revive orders due-1", exitNotFound},
		{"drop orders due-1", exitNotFound},
		{"bury orders dead-1", exitNotFound},
		{"bury orders done-1", exitNotFound},
		{"run orders done-1", exitNotFound},
		{"revive orders done-1", exitNotFound},
		{"drop orders done-1", exitNotFound},
		{"cancel orders --all --state done", exitNotConfirmed},
		{"lock none", exitNotFound},
		{"unlock none --force", exitNotFound},
		{"drop orders --all", exitNotConfirmed},
		{"drop orders --all --confirm 1", exitNotConfirmed},
		{"purge orders", exitNotConfirmed},
		{"queues --url redis://127.0.0.1:1", exitUnavailable},
		{"get foreign a", exitFailed},
		{"queues --username nobody", exitUsage}, // no password
		{"queues --username nobody --password-file testdata/password", exitDenied},
		{"drop orders --all --confirm 2", exitOK},
		{"cancel orders --all --state leased --yes", exitOK},
		{"cancel orders --all --state done --confirm 1", exitOK},
	} {
		line, want := c.line, c.code
		got := s.run(strings.Fields(line)...)
		require.Equal(t, want, got.code, "sluice %s\n%s%s", line, got.out, got.err)
		require.Equal(t, want == exitOK, !strings.Contains(got.err, "sluice: "), "sluice %s\n%s", line, got.err)
	}
}

func TestQuestions(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.interactive = true
	for input, want := range map[string]int{"": exitNotConfirmed, "y\n": exitNotConfirmed, "1\n": exitNotConfirmed} {
		s.input = input
		got := s.run("revive", "orders", "--all")
		require.Equal(t, want, got.code, "%q %s", input, got.err)
		require.Contains(t, got.err, "revive 2 dead letters of orders")
		require.Equal(t, "dead", s.stateOf(q, "dead-1"))
	}
	s.input = "2\n"
	s.ok("revive", "orders", "--all")
	require.Equal(t, "due", s.stateOf(q, "dead-1"))
	s.input = "order\n"
	require.Equal(t, exitNotConfirmed, s.run("purge", "orders").code)
	s.input = "orders\n"
	s.ok("purge", "orders")
	require.Equal(t, "absent", s.stateOf(q, "due-1"))
}
