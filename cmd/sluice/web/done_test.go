package web

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// finishAll has a Worker finish the n tasks that are due, with a result.
func finishAll(t *testing.T, q *sluice.Queue, n int64, result string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	w := sluice.Worker{Queue: q, Handler: func(ctx context.Context, _ sluice.Entry) error {
		return sluice.RecordResult(ctx, []byte(result))
	}}
	go func() { ended <- w.Run(ctx) }() // ends with ctx; the test waits for it
	require.Eventually(t, func() bool { return w.Stats().Done == n }, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

// TestDone_IsShownWhereItIsRemembered: a queue that remembers nothing has no tab for it.
func TestDone_IsShownWhereItIsRemembered(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{})
	fill(t, newQueue(t, rdb, "mails"), 2, 0, "a")
	got := s.get("/queues/mails")
	got.lacks(t, `class="tab done"`, "state=done")
	s.get("/").lacks(t, "remembered")
	s.get("/queues/mails?state=done").has(t, `class="tab done"`, "Done tasks", "No finished task is remembered.")

	q := newQueue(t, rdb, "orders", sluice.WithRetention(time.Hour))
	fill(t, q, 3, 0, "a")
	finishAll(t, q, 3, "<b>canary\u202e</b>")
	s.later()
	got = s.get("/queues/orders")
	got.has(t, `class="tab done"`, `href="/queues/orders?state=done"`, `<span class="tab-count">3</span>`, `<span class="tab-note">remembered</span>`, "No task is due.")
	got.lacks(t, ">Empty<")
	s.get("/").has(t, "0 dead · 3 done and remembered")
	got = s.get("/queues/orders?state=done")
	got.has(t, "Done tasks", ">Done</th>", "a0000", "a0002", "ago</time>", `data-label="Attempts">1<`)
	got.lacks(t, "canary", "Forget", "Reason")
	s.get("/queues/orders?id=a0001").has(t, ">Done<")

	url := "/queues/orders/tasks/a0001"
	got = s.get(url)
	got.has(t, ">Done<", "<dt>Done</dt>", "ago", "<dd>1</dd>", ">Result<", "It has 16 bytes. A result may be private", "Show the result")
	got.lacks(t, "canary", ">Payload<", ">Header<", "Forget")
	got = s.get(url + "?payload=1")
	got.has(t, "3c 62 3e 63 61 6e 61 72", "Hide the result")
	got.requireSafe(t)
	got.lacks(t, "<b>canary")
	require.Equal(t, http.StatusForbidden, s.post(url, "do", "forget", "sure", "1").StatusCode)
}

// TestDone_IsForgotten when a visitor is sure; what is for other tasks leaves it alone, and so does
// forgetting those.
func TestDone_IsForgotten(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name, sluice.WithRetention(time.Hour))
	fill(t, q, 4, 0, "d")
	finishAll(t, q, 4, "")
	fill(t, q, 1, time.Hour, "s")
	s := newSite(t, rdb, Options{Write: true})
	requireState := func(want sluice.State, ids ...string) {
		t.Helper()
		for _, id := range ids {
			e, err := q.Get(t.Context(), id)
			if !isNotFound(err) {
				require.NoError(t, err)
			}
			require.Equal(t, want, e.State, id)
		}
	}
	tasks := "/queues/" + segment(name) + "/tasks"
	got := s.get("/queues/" + segment(name) + "?state=done")
	got.has(t, `value="forget"`, `aria-label="Select d0000"`, "and what is remembered of finished ones")
	got.lacks(t, `value="cancel"`, `value="delay"`, `value="revive"`)
	got = s.get(tasks + "/d0000")
	got.has(t, `value="forget"`, "No result was recorded")
	got.lacks(t, `value="cancel"`, `value="delay"`, `value="revive"`, "Show the result")
	for _, do := range []string{"cancel", "drop", "revive", "run", "delay"} {
		s.post(tasks, "do", do, "sure", "1", "for", "1m", "state", "done", "id", "d0000").has(t, "1 other had changed meanwhile", `class="notice bad"`)
	}
	s.post(tasks, "do", "forget", "state", "done", "id", "d0000", "id", "d0001").has(t, "Forget 2 done tasks?", "Their IDs can be enqueued again", "d0001")
	requireState(sluice.StateDone, "d0000", "d0001")
	s.post(tasks, "do", "forget", "sure", "1", "state", "done", "id", "d0000", "id", "d0001", "id", "s0000").has(t, "2 tasks forgotten", "1 other had changed", "Done tasks", "d0002")
	requireState(sluice.StateAbsent, "d0000", "d0001")
	requireState(sluice.StateScheduled, "s0000")
	s.post(tasks+"/d0002", "do", "forget").has(t, "Forget 1 done task?")
	s.post(tasks+"/d0002", "do", "forget", "sure", "1").has(t, "1 task forgotten", "Done tasks", "d0003")
	requireState(sluice.StateAbsent, "d0002")
	requireState(sluice.StateDone, "d0003")
}
