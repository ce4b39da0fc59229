package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// says has a worker say of itself what it would as it runs, now: it counts for 45 s.
func says(t *testing.T, rdb redis.UniversalClient, queue string, what map[string]any) {
	t.Helper()
	all := map[string]any{"id": "AAAAAAAA", "host": "node-1", "pid": 7, "concurrency": 4, "version": "v1.0.0", "counts": 45, "started": time.Now().Add(-time.Hour).UnixMilli()}
	maps.Copy(all, what)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.ZAdd(t.Context(), "{Queue:"+queue+"}:workers", redis.Z{Score: float64(now.UnixMilli())/1e3 + 45, Member: text}).Err())
}

// TestQueue_NeverRunsWithoutAWorker: where none lives, both pages say so, and since when; a pause
// is told first.
func TestQueue_NeverRunsWithoutAWorker(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 3, 0, "a")
	s := newSite(t, rdb, Options{Write: true})
	both := func(check func(answer)) {
		s.later()
		for _, path := range []string{"/", "/queues/orders"} {
			check(s.get(path))
		}
	}
	both(func(got answer) {
		got.has(t, `chip dead`, "No worker</span>", "none seen for a day", "oops of your own (Claim, Pop)")
		got.lacks(t, "Not paused", "handed out to workers")
	})
	s.get("/").has(t, "1 queue with due tasks and no worker")
	seen := time.Now().Add(-12*time.Minute - 5*time.Second)
	require.NoError(t, rdb.HSet(t.Context(), "{Queue:orders}:counts", "worked", seen.Unix()).Err())
	both(func(got answer) {
		got.has(t, ">"+hour(seen)+"</time>", "none seen since")
		require.Regexp(t, `\(12m 0\ds ago\)`, got.body)
	})
	require.NoError(t, q.Pause(t.Context(), 0))
	both(func(got answer) { got.lacks(t, "No worker</span>", "with due tasks and no worker") })
	s.get("/queues/orders").has(t, ">Paused<", "no worker, none seen since")
	require.NoError(t, q.Resume(t.Context()))
	says(t, rdb, "orders", nil)
	both(func(got answer) { got.lacks(t, "No worker", "none seen") })
	s.get("/queues/orders").has(t, "Not paused", ">1 worker</a>, 0 of 4 handlers running", "no client waits for tasks")
	require.NoError(t, rdb.Del(t.Context(), "{Queue:orders}:workers").Err())
	require.NoError(t, q.Purge(t.Context()))
	both(func(got answer) {
		got.has(t, `<span class="chip">No worker</span>`) // nothing is due: that is no emergency
		got.lacks(t, "with due tasks and no worker")
	})
}

// TestQueue_ListsItsWorkers: those that are stuck first, and their versions if these differ.
func TestQueue_ListsItsWorkers(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	says(t, rdb, "orders", map[string]any{"id": "AAAAAAAA", "label": "mailer-1", "running": 3})
	s := newSite(t, rdb, Options{})
	got := s.get("/queues/orders")
	got.has(t, "mailer-1", "node-1:7", ">3 of 4<", ">none<", "1h 00m ago")
	got.lacks(t, ">Version<", "v1.0.0", "stuck", "Empty")
	says(t, rdb, "orders", map[string]any{"id": "BBBBBBBB", "host": "node-2", "running": 4, "stuck": 2, "version": "v2.0.0"})
	s.later()
	got = s.get("/queues/orders")
	got.has(t, ">2 workers</a>, 7 of 8 handlers running", "2 handlers stuck", "</svg>2 stuck<", ">Version<", "v1.0.0", "v2.0.0")
	require.Less(t, strings.Index(got.body, "node-2:7"), strings.Index(got.body, "node-1:7"))
	for i := range mostWorkers {
		says(t, rdb, "orders", map[string]any{"id": fmt.Sprint(i)})
	}
	s.later()
	s.get("/queues/orders").has(t, "52 workers</a>", "2 others not listed")
	s.get("/?sort=workers").has(t, `data-label="Workers">52<`, `aria-sort="ascending"><a href="/?sort=workers"`)
}

// TestQueue_TheRestIsShownWithoutWorkers: that they can not be read is said in their place.
func TestQueue_TheRestIsShownWithoutWorkers(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 2, 0, "a")
	_, err := q.Claim(t.Context(), 1, time.Hour)
	require.NoError(t, err)
	says(t, rdb, "orders", nil)
	lease(t, rdb, "orders", "a0000", "60/AAAAAAAA")
	s := newSite(t, rdb, Options{})
	s.page.watch.of("orders").workers.look = func(context.Context) ([]sluice.WorkerInfo, error) {
		return nil, errors.New("NOPERM <no>")
	}
	got := s.get("/queues/orders?state=leased")
	require.Equal(t, http.StatusOK, got.StatusCode)
	got.has(t, "Who works is not known.", "NOPERM &lt;no&gt;", "a0000", ">1 worker</a>", "worker AAAAAAAA, of which no more can be read")
	s.get("/queues/orders/tasks/a0000").has(t, "worker AAAAAAAA, of which no more can be read", ">Leased<")
}

// lease says of a leased task for how long it was leased, and by which worker.
func lease(t *testing.T, rdb redis.UniversalClient, queue, id, claimant string) {
	t.Helper()
	field, err := rdb.HGet(t.Context(), "{Queue:"+queue+"}:state", id).Result()
	require.NoError(t, err)
	parts := strings.Split(field, ":")
	require.GreaterOrEqual(t, len(parts), 4) // more if it is in a group
	parts[len(parts)-1] = claimant
	require.NoError(t, rdb.HSet(t.Context(), "{Queue:"+queue+"}:state", id, strings.Join(parts, ":")).Err())
}

// TestTask_WhoHasIt: a worker that lives, one that is gone, or a loop of one's own, and since when;
// in the list, too.
func TestTask_WhoHasIt(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 4, 0, "a")
	_, err := q.Claim(t.Context(), 4, time.Minute)
	require.NoError(t, err)
	says(t, rdb, "orders", map[string]any{"label": "mailer-1"})
	lease(t, rdb, "orders", "a0000", "3720/AAAAAAAA") // a lease of an hour and two minutes of which one is left
	lease(t, rdb, "orders", "a0001", "3720/ZZZZZZZZ")
	lease(t, rdb, "orders", "a0002", "60/ZZZZZZZZ")
	s := newSite(t, rdb, Options{})
	const mailer, gone, fresh, own = "mailer-1</bdi>", "a worker that is gone", "a worker that has just begun, or is gone", "a loop of your own (Claim)"
	list := s.get("/queues/orders?state=leased")
	list.has(t, mailer, gone, fresh, own, "1h 01m", ">Leased for<")
	list.lacks(t, "Last error", "ZZZZZZZZ")
	for id, want := range map[string]string{"a0000": mailer, "a0001": gone, "a0002": fresh, "a0003": own} {
		got := s.get("/queues/orders/tasks/" + id)
		got.has(t, want, "<dt>Leased since</dt>", "<dt>Leased by</dt>")
		if id < "a0002" {
			require.Regexp(t, `1h 01m ago`, got.body)
		}
	}
	require.NoError(t, rdb.HSet(t.Context(), "{Queue:orders}:state", "a0000", "1:").Err()) // not of this library: nothing is claimed of it
	s.later()
	require.Equal(t, http.StatusOK, s.get("/queues/orders?state=leased").StatusCode)
}

// TestTask_LastError: of what is tried again, with when, in its story and in each list; cut there.
func TestTask_LastError(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 2, 0, "a")
	entries, err := q.Claim(t.Context(), 2, time.Minute)
	require.NoError(t, err)
	why := "POST <partner>: 503 " + strings.Repeat("x", 90) + "THE END"
	require.NoError(t, q.Retry(t.Context(), time.Hour, why, entries[0]))
	require.NoError(t, q.Retry(t.Context(), 0, why, entries[1]))
	s := newSite(t, rdb, Options{})
	for _, state := range []string{"scheduled", "due"} {
		got := s.get("/queues/orders?state=" + state)
		got.has(t, ">Last error</th>", "POST &lt;partner&gt;: 503")
		got.lacks(t, "THE END", ">Reason</th>", "canary")
	}
	got := s.get("/queues/orders/tasks/" + entries[0].ID)
	got.has(t, "<dt>Last error</dt>", "THE END", "ago</time>, 20", "<dt>Due again</dt>", "<dd>1</dd>")
	got.lacks(t, "canary", "<dt>Leased")
	again, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	s.later()
	s.get("/queues/orders?state=leased").has(t, "POST &lt;partner&gt;: 503", ">Last error</th>")
	require.NoError(t, q.Bury(t.Context(), "gave up", again[0]))
	s.later()
	got = s.get("/queues/orders/tasks/" + again[0].ID)
	got.has(t, "<dt>Reason</dt>", "gave up")
	got.lacks(t, "Last error", "&gt;: 503")
}

// TestQueue_Rates: how often tasks end well or badly, of a moment that was watched, beside the
// counts.
func TestQueue_Rates(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	fill(t, q, 1, 0, "a")
	s := newSite(t, rdb, Options{})
	s.get("/queues/"+segment(name)).has(t, "<dt>Finished</dt><dd>…</dd>")
	s.page.watch.of(name).past.points[0].at = time.Now().Add(-10 * time.Second) // as if it had been watched for so long
	require.NoError(t, rdb.HSet(t.Context(), "{Queue:"+name+"}:counts", "done", 20, "retried", 2, "dropped", 1234).Err())
	s.later()
	got := s.get("/queues/" + segment(name))
	require.Regexp(t, `<dt>Finished</dt><dd>(2\.0|1\.9)/s <span class="soft">20 in all`, got.body)
	require.Regexp(t, `<dt>Retried</dt><dd class="bad">1[12]/min <span class="soft">2 in all`, got.body)
	got.has(t, "<dt>Buried</dt><dd>none</dd>", "<dt>Trimmed</dt>", "1,234 in all")
	s.get("/?q="+name).has(t, `data-label="Failed">1`, "/min</td>")
}

func TestHeldBy_NamesTheOwnersOfPermits(t *testing.T) {
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint("o", i)
	}
	for want, held := range map[string][]string{
		"no label": {}, "<bdi>a</bdi>": {"a"},
	} {
		require.Contains(t, heldBy(1, held), want)
	}
	require.Equal(t, "3 held by <bdi>a</bdi>, <bdi>b</bdi>, <bdi>c</bdi>", string(heldBy(3, []string{"a", "b", "c"})))
	require.Equal(t, `4 held by <bdi>a</bdi> (2), <bdi>&lt;b&gt;</bdi>, <span class="none">1 without a label</span>`, string(heldBy(4, []string{"a", "<b>", "a"})))
	require.Contains(t, heldBy(2, nil), "2 permits")
	require.True(t, strings.HasSuffix(string(heldBy(20, many)), "<bdi>o7</bdi>, 12 others"))
}

// TestPage_HostileWorkers: whatever is written as a worker, or as an error, is shown as escapes.
func TestPage_HostileWorkers(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, len(hostile), 0, "a")
	entries, err := q.Claim(t.Context(), len(hostile), time.Hour)
	require.NoError(t, err)
	for i, text := range append(hostile, strings.Repeat("W<\x1b", 20_000)) {
		says(t, rdb, "orders", map[string]any{"id": fmt.Sprint("a", i), "label": text, "host": text, "version": text, "stuck": len(hostile) - i, "running": int64(-1) << 62, "started": int64(1) << 62})
		require.NoError(t, rdb.HSet(t.Context(), "{Queue:orders}:errors", fmt.Sprintf("a%04d", i), "1700000000 "+text).Err())
	}
	require.NoError(t, rdb.ZAdd(t.Context(), "{Queue:orders}:workers", redis.Z{Score: 1e12, Member: "<script>"}, redis.Z{Score: 1e12, Member: "\xff"}).Err())
	lease(t, rdb, "orders", "a0000", "1e999/<script>alert(1)</script>")
	lease(t, rdb, "orders", "a0001", "60/a1")
	s := newSite(t, rdb, Options{Write: true})
	check := func(path string) answer {
		s.later()
		got := s.get(path)
		require.Equal(t, http.StatusOK, got.StatusCode)
		got.requireSafe(t)
		return got
	}
	check("/")
	got := check("/queues/orders?state=leased&n=250")
	got.has(t, string(short("<script>alert(1)</script>")), "Workers</h2>")
	require.Less(t, len(got.body), 2<<20)
	for _, e := range entries[:20] {
		check("/queues/orders/tasks/" + segment(e.ID))
	}
	for _, e := range entries {
		if e.ID != "a0000" {
			_ = q.Retry(t.Context(), 0, hostile[0], e)
		}
	}
	check("/queues/orders?n=250")
}

// TestPage_WorkersAreReadOnce a look at a queue, however many tasks they have, and not at all where
// none lives.
func TestPage_WorkersAreReadOnce(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 200, 0, "a")
	_, err := q.Claim(t.Context(), 200, time.Hour)
	require.NoError(t, err)
	for i := range 200 {
		lease(t, rdb, "orders", fmt.Sprintf("a%04d", i), "60/AAAAAAAA")
	}
	s := newSite(t, rdb, Options{})
	scripts := func(path string) int {
		s.later()
		s.page.watch.of("orders").workers.expire()
		_, before := sent(t, rdb)
		s.get(path)
		_, after := sent(t, rdb)
		return after - before
	}
	const path = "/queues/orders?state=leased&n=200"
	scripts(path) // opens the queue, and loads the scripts
	require.Equal(t, 3, scripts(path), "the figures, the list and the stocks")
	says(t, rdb, "orders", nil)
	scripts(path)
	require.Equal(t, 4, scripts(path))
	require.Equal(t, 2, scripts("/"), "whether a handler is stuck")
	s.page.watch.of("orders").stats.expire()
	s.page.tables.forget("")
	_, before := sent(t, rdb)
	s.get("/")
	_, after := sent(t, rdb)
	require.Equal(t, 1, after-before, "what workers have said is good for some seconds")
}
