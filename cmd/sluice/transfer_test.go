package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// mixed fills a queue with tasks in each state, with texts of any bytes.
func (s stage) mixed(q *sluice.Queue) {
	s.Helper()
	ctx := s.Context()
	require.NoError(s, q.SetStock(ctx, "ph\xfene", 100))
	for i := range 40 {
		t := sluice.Task{ID: fmt.Sprintf("t%02d", i), Kind: "k", Payload: []byte(`{"a":"<b>"}`), Header: map[string]string{"x": "y"}}
		switch i % 4 {
		case 1:
			t.ID, t.Kind, t.Payload = t.ID+"\xff\x00\n", "k\xfe", []byte("\x00\xff")
			t.Header = map[string]string{"h\xff": "v\xfe", "a": "b"}
		case 2:
			t.Group, t.Payload = "g\xff", nil
		case 3:
			t.Take, t.Expires = sluice.Take{Item: "ph\xfene", Units: 2}, time.Now().Add(time.Hour)
		}
		if i >= 30 {
			t.Delay = 30 * time.Minute
		}
		_, err := q.Enqueue(ctx, t)
		require.NoError(s, err)
	}
	es, err := q.Claim(ctx, 12, time.Hour)
	require.NoError(s, err)
	require.NoError(s, q.Bury(ctx, "dial tcp: refused", es[:5]...))
	require.NoError(s, q.Retry(ctx, time.Hour, "timeout", es[5:]...))
}

// TestExport_ImportIsAnExactRoundTrip: what is exported of a queue, imported and exported again is the same, byte by byte
// but for the order of lines.
func TestExport_ImportIsAnExactRoundTrip(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.mixed(q)
	lines := func() []string {
		all := strings.Split(strings.TrimSpace(s.ok("export", "orders")), "\n")
		slices.Sort(all)
		return all
	}
	want := lines()
	require.Len(t, want, 40)
	file := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(s.ok("export", "--match", "ord*")), 0o600))
	require.NoError(t, q.Purge(t.Context()))
	require.Contains(t, s.ok("import", file, "--dry-run"), "40 tasks would be imported")
	require.Empty(t, s.ok("export", "orders"))
	require.Contains(t, s.ok("import", file), "40 tasks imported")
	require.Equal(t, want, lines())
	require.Contains(t, s.ok("import", file, "--dry-run"), "0 tasks would be imported; 40 kept")
	require.Contains(t, s.ok("import", file), "0 tasks imported; 40 kept")
	require.Equal(t, want, lines())
	info, err := q.Stock(t.Context(), "ph\xfene")
	require.NoError(t, err)
	require.EqualValues(t, 20, info.Held)

	s.input = s.ok("export", "orders", "--state", "dead")
	require.Contains(t, s.ok("import", "-", "--to", "parked"), "5 tasks imported")
	require.Len(t, strings.Split(strings.TrimSpace(s.ok("export", "parked")), "\n"), 5)
}

// TestImport_AWrongLine: what stands before it is imported, its number is said, and none of its text, which may be a payload.
func TestImport_AWrongLine(t *testing.T) {
	s := newStage(t)
	good := `{"queue":"orders","id":"a","state":"due","at":"2026-01-31T12:00:00Z"}` + "\n"
	for _, wrong := range []string{
		`secret`, `{"id":"b","secret":1}`, `{"queue":"orders","id":5,"state":"due","payload":"secret"}`, `{"queue":"orders","id":"b","state":"secret"}`,
		`{"queue":"orders","id":"b","state":"due","payload_base64":"secret%"}`, `{"queue":"orders","id":"b","state":"due"}`, `{"queue":"orders","id":"b","state":"done","at":"2026-01-31T12:00:00Z"}`,
		`{"queue":"orders","id":"b","state":"due","at":"2026-01-31T12:00:00Z","attempt":-1}`, `{"queue":"orders","id":"b","state":"due","at":"2026-01-31T12:00:00Z","attempt":10000000000}`,
		`{"queue":"orders","id":"b","state":"due","at":"2026-01-31T12:00:00Z","expires":"1900-01-31T12:00:00Z"}`, `{"queue":"orders","id":"b","state":"due","at":"2026-01-31T12:00:00Z","failed":"2900-01-31T12:00:00Z"}`,
	} {
		require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
		s.input = good + "\n" + wrong + "\n" + strings.ReplaceAll(good, `"a"`, `"c"`)
		got := s.run("import", "-")
		require.Equal(t, exitUsage, got.code, "%s: %s", wrong, got.err)
		if !strings.Contains(wrong, `"state":"secret"`) && !strings.Contains(wrong, `"secret":1`) {
			require.NotContains(t, got.err, "secret", wrong)
		}
		require.Contains(t, s.ok("queues", "orders"), "orders", wrong)
		require.EqualValues(t, 1, s.rdb.ZCard(t.Context(), "Queue:orders").Val(), "what stands before it is there: %s", wrong)
		require.Contains(t, got.err, "line 3", wrong)
		require.Equal(t, exitUsage, s.run("import", "-", "--dry-run").code, "%s", wrong)
	}
	require.Equal(t, exitUsage, s.run("import", "/nowhere").code)
}

// TestExport_TasksThatBecomeDueMeanwhile are each there once: a pause does not stop the clock. So
// are those of a command with --all.
func TestExport_TasksThatBecomeDueMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	require.NoError(t, q.Pause(t.Context(), 0))
	at := s.rdb.Time(t.Context()).Val().Add(2 * time.Second)
	tasks := make([]sluice.Task, 20_000)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), At: at}
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	time.Sleep(time.Until(at) - 100*time.Millisecond) // they become due while they are read; on a busy machine before that
	lines := strings.Fields(s.ok("export", "orders"))
	require.Len(t, lines, len(tasks))
	slices.Sort(lines)
	require.Len(t, slices.Compact(lines), len(tasks))

	var got resultJSON
	s.json(exitOK, &got, "cancel", "orders", "--all", "--state", "due,scheduled", "--dry-run")
	require.Equal(t, len(tasks), got.Matched)
	require.Equal(t, []sluice.State{sluice.StateLeased, sluice.StateWaiting, sluice.StateScheduled, sluice.StateDue, sluice.StateDead}, inOrder([]sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateLeased, sluice.StateDead, sluice.StateWaiting}))
	several := []sluice.State{sluice.StateScheduled, sluice.StateDue}
	seen := newMet(several, at)
	task := sluice.TaskInfo{Entry: sluice.Entry{ID: "a", Due: at}, State: sluice.StateScheduled}
	require.True(t, seen.isNew(task))
	task.State = sluice.StateDue
	require.False(t, seen.isNew(task))
	later := sluice.TaskInfo{Entry: sluice.Entry{ID: "b", Due: at.Add(mostRead)}, State: sluice.StateScheduled}
	require.True(t, seen.isNew(later))
	require.Len(t, seen.known, 1, "what is due later than the lists are read is not kept")

	leased := sluice.TaskInfo{Entry: sluice.Entry{ID: "c"}, State: sluice.StateLeased}
	seen = newMet([]sluice.State{sluice.StateLeased}, at)
	require.True(t, seen.isNew(leased))
	require.False(t, seen.isNew(leased), "its lease was extended meanwhile, and it stands further behind")
	seen = newMet([]sluice.State{sluice.StateDead}, at)
	require.True(t, seen.isNew(sluice.TaskInfo{Entry: sluice.Entry{ID: "d"}, State: sluice.StateDead}))
	require.Empty(t, seen.known)
}

// TestExport_IsWholeOrFails: a disk that is full is no success.
func TestExport_IsWholeOrFails(t *testing.T) {
	s := newStage(t)
	s.mixed(s.queue("orders"))
	var errOut bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &output{Writer: full{}}, errOut: &errOut, lookupEnv: func(name string) (string, bool) { v, ok := s.env[name]; return v, ok }}
	require.Equal(t, exitFailed, a.run(t.Context(), []string{"export", "orders"}))
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

// TestMove_TasksAsTheyAre: dead letters at once, others only from a paused queue; what holds units, and what the other queue has,
// stays.
func TestMove_TasksAsTheyAre(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	from, to := s.queue("orders"), s.queue("parked")
	s.mixed(from)
	before, err := from.Stats(ctx)
	require.NoError(t, err)
	want, err := from.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 10)
	require.NoError(t, err)
	kept, held := 0, 0
	for i, d := range want {
		if d.Take.Units > 0 {
			held++
		} else if kept == 0 {
			kept = i + 1
			_, err := to.Enqueue(ctx, sluice.Task{ID: d.ID, Delay: time.Hour})
			require.NoError(t, err)
		}
	}
	var got resultJSON
	s.json(exitFailed, &got, "move", "orders", "--to", "parked", "--all", "--yes")
	moved := 5 - held - 1
	require.Equal(t, map[string]int{"done": moved, string(outcomeKept): 1, string(outcomeHolds): held}, got.Outcomes)
	require.Equal(t, moved, got.Done, "what stayed is not said to be moved")
	there, err := to.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 10)
	require.NoError(t, err)
	require.Len(t, there, moved)
	for _, d := range there {
		i := slices.IndexFunc(want, func(w sluice.TaskInfo) bool { return w.ID == d.ID })
		require.Equal(t, want[i], d)
	}
	due := []string{"move", "orders", "--to", "parked", "--all", "--state", "due,scheduled", "--yes"}
	require.Equal(t, exitNotConfirmed, s.run(due...).code, "it is not paused")
	require.NoError(t, from.Pause(ctx, 0))
	s.json(exitFailed, &got, due...) // those that hold units stay
	after, err := from.Stats(ctx)
	require.NoError(t, err)
	require.Positive(t, got.Outcomes["done"])
	other, err := to.Stats(ctx)
	require.NoError(t, err)
	require.Equal(t, before.Due+before.Scheduled+before.GroupWaiting+1, after.Due+after.Scheduled+after.GroupWaiting+other.Due+other.Scheduled+other.GroupWaiting, "none is lost, and none is twice")
	require.Equal(t, exitUsage, s.run("move", "orders", "--all", "--yes").code)

	// What an interrupted move has left in both queues is in one after the next.
	s.input = s.ok("export", "parked", "--state", "dead", "--prefix", there[0].ID)
	require.Contains(t, s.ok("import", "-", "--to", "orders"), "1 task imported")
	got = resultJSON{}
	s.json(exitOK, &got, "move", "orders", "--to", "parked", "--all", "--prefix", there[0].ID, "--yes")
	require.Equal(t, map[string]int{"done": 1}, got.Outcomes)
	_, err = from.Get(ctx, there[0].ID)
	require.ErrorIs(t, err, sluice.ErrNotFound)
	require.NoError(t, from.Pause(ctx, time.Hour))
	_, err = from.Enqueue(ctx, sluice.Task{ID: "later"})
	require.NoError(t, err)
	require.Equal(t, exitNotConfirmed, s.run("move", "orders", "later", "--to", "parked").code, "the pause may end meanwhile")
	require.Equal(t, exitUsage, s.run("move", "orders", "--to", "orders", "--all", "--yes").code)
}

// TestEnqueue_OneTask, and none twice.
func TestEnqueue_OneTask(t *testing.T) {
	s := newStage(t)
	require.Contains(t, s.ok("enqueue", "orders", "a", "--kind", "mail", "--payload", "body", "--header", "k=v=w", "--delay", "1h"), "a: added")
	got, err := s.queue("orders").Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, []any{"mail", "body", map[string]string{"k": "v=w"}, sluice.StateScheduled}, []any{got.Kind, string(got.Payload), got.Header, got.State})
	require.Equal(t, exitNotConfirmed, s.run("enqueue", "orders", "a").code)
	s.input = "\x00\xff"
	var j enqueueJSON
	s.json(exitOK, &j, "enqueue", "orders", "--payload-file", "-")
	got, err = s.queue("orders").Get(t.Context(), j.ID)
	require.NoError(t, err)
	require.Equal(t, "\x00\xff", string(got.Payload))
	for _, wrong := range [][]string{{"--at", "soon"}, {"--header", "x"}, {"--payload", "a", "--payload-file", "b"}, {"--payload-file", "/nowhere"}} {
		require.Equal(t, exitUsage, s.run(append([]string{"enqueue", "orders", "b"}, wrong...)...).code, wrong)
	}
}

// TestDrain_WaitsForTheLastLease, or for so long, and leaves the queue paused.
func TestDrain_WaitsForTheLastLease(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	got := s.run("drain", "orders", "--wait", "300ms")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.err, "1 leased task still")
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.True(t, stats.Paused)
	ended := make(chan string, 1)
	go func() { ended <- s.ok("drain", "orders") }() // it ends below
	require.Never(t, func() bool { return len(ended) > 0 }, 600*time.Millisecond, 50*time.Millisecond)
	_, err = q.Cancel(t.Context(), "leased-1")
	require.NoError(t, err)
	require.Contains(t, <-ended, "drained, paused until resume")
}

// TestUnlock_OnlyIfThatOwnerHoldsIt.
func TestUnlock_OnlyIfThatOwnerHoldsIt(t *testing.T) {
	s := newStage(t)
	l, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	k, err := l.Lock(t.Context(), "report", sluice.WithOwner("pod-2"))
	require.NoError(t, err)
	got := s.run("unlock", "report", "--force", "--if-owner", "pod-1")
	require.Equal(t, exitNotConfirmed, got.code)
	require.Contains(t, got.err, "pod-2")
	require.True(t, k.Valid())
	require.Contains(t, s.ok("unlock", "report", "--force", "--if-owner", "pod-2"), "freed")
	require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
}

// TestUnlock_AnEmptyOwnerIsAMistake: a script whose variable is not set frees nothing.
func TestUnlock_AnEmptyOwnerIsAMistake(t *testing.T) {
	s := newStage(t)
	l, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	k, err := l.Lock(t.Context(), "report", sluice.WithOwner("pod-2"))
	require.NoError(t, err)
	require.Equal(t, exitUsage, s.run("unlock", "report", "--force", "--if-owner", "").code)
	require.NoError(t, k.Unlock(t.Context()))
	require.Equal(t, exitNotFound, s.run("drain", "no-such-queue", "--wait", "1s").code)
	require.Equal(t, exitUsage, s.run("cancel", "orders", "--all", "--state", "done", "--group", "acme").code)
}

// TestDrain_PausesAllBeforeItWaits: one with a handler that hangs does not keep the next one at work.
func TestDrain_PausesAllBeforeItWaits(t *testing.T) {
	s := newStage(t)
	a, b := s.queue("a"), s.queue("shop/b")
	s.fill(a)
	s.fill(b)
	require.Equal(t, exitFailed, s.run("drain", "a", "shop/b", "--wait", "100ms").code)
	for _, q := range []*sluice.Queue{a, b} {
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.True(t, stats.Paused, q.Name())
	}
	require.Contains(t, s.ok("export", "--match", "*", "--state", "due"), `"shop/b"`, "a / is a character like others")
}

// TestExport_WhatIsInPlayComesFirst, of groups with more tasks than are imported at once: one that was
// tried before stays in play, though others are due before it.
func TestExport_WhatIsInPlayComesFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	ctx := t.Context()
	_, err := q.Enqueue(ctx, sluice.Task{ID: "first", Group: "w"})
	require.NoError(t, err)
	es, err := q.Claim(ctx, 1, time.Hour)
	require.NoError(t, err)
	require.NoError(t, q.Retry(ctx, time.Hour, "timeout", es...))
	tasks := make([]sluice.Task, importAtOnce+500)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Group: "w"}
	}
	_, err = q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	want, err := q.Get(ctx, "first")
	require.NoError(t, err)
	require.Equal(t, sluice.StateScheduled, want.State)
	file := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(s.ok("export", "orders")), 0o600))
	s.ok("import", file, "--to", "copy")
	got, err := s.queue("copy").Get(ctx, "first")
	require.NoError(t, err)
	require.Equal(t, want.State, got.State)
	require.Equal(t, want.Attempt, got.Attempt)
	stats, err := s.queue("copy").Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, len(tasks), stats.GroupWaiting)
	require.Equal(t, []sluice.State{sluice.StateScheduled, sluice.StateWaiting, sluice.StateScheduled}, exportOrder([]sluice.State{sluice.StateWaiting, sluice.StateScheduled}))
}
