package web

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
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
)

// sent returns how many bytes a server has sent to all clients since its start, and how many
// scripts it was sent.
func sent(t testing.TB, rdb redis.UniversalClient) (size, scripts int) {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "stats", "commandstats").Result()
	require.NoError(t, err)
	size, err = strconv.Atoi(info["Stats"]["total_net_output_bytes"])
	require.NoError(t, err)
	_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d,", &scripts)
	return size, scripts
}

// fillLarge makes n tasks in each state, with payloads of so many bytes, and results of a third of
// that.
func fillLarge(t *testing.T, q *sluice.Queue, n, size int) {
	t.Helper()
	ctx, payload := t.Context(), bytes.Repeat([]byte("x"), size)
	add := func(state sluice.State, delay time.Duration) {
		group := ""
		if state == sluice.StateWaiting {
			group = "g"
		}
		for i := range n {
			_, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprintf("%s%04d", state, i), Payload: payload, Delay: delay, Group: group, Header: map[string]string{"tenant": "north"}})
			require.NoError(t, err)
		}
	}
	add(sluice.StateDone, 0)
	finishAll(t, q, int64(n), string(payload[:size/3]))
	add(sluice.StateDead, 0)
	entries, err := q.Claim(ctx, n, time.Hour)
	require.NoError(t, err)
	for i, e := range entries {
		require.NoError(t, q.Bury(ctx, []string{"503 from the partner", "cannot parse"}[i%2], e))
	}
	add(sluice.StateLeased, 0)
	_, err = q.Claim(ctx, n, time.Hour)
	require.NoError(t, err)
	add(sluice.StateDue, 0)
	add(sluice.StateScheduled, time.Hour)
	add(sluice.StateWaiting, time.Hour) // but for the first
}

// TestPage_ReadsNoPayloads: whatever is done on the page, no payload leaves Redis, except the one
// that a visitor asks for.
func TestPage_ReadsNoPayloads(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders", sluice.WithRetention(time.Hour))
	const n, size = 60, 192_000
	fillLarge(t, q, n, size)
	s := newSite(t, rdb, Options{Write: true})
	reads := func(what string, most int, do func() answer) {
		t.Helper()
		before, _ := sent(t, rdb)
		got := do()
		after, _ := sent(t, rdb)
		require.Equal(t, http.StatusOK, got.StatusCode, what)
		require.Less(t, after-before, most, "bytes that Redis has sent for %s", what)
	}
	page := func(path string) func() answer { return func() answer { return s.get(path) } }
	for _, state := range states {
		reads(state.String(), size/2, page("/queues/orders?n=250&state="+state.String()))
		reads("a task that is "+state.String(), 2*size, page("/queues/orders/tasks/"+state.String()+"0003"))
	}
	reads("the letters with a reason", size/2, page("/queues/orders?state=dead&reason=parse"))
	reads("a task by its ID", 2*size, page("/queues/orders?id=due0003"))
	reads("a payload", 2*size, page("/queues/orders/tasks/due0003?payload=1"))
	post := func(pairs ...string) func() answer {
		return func() answer { return s.post("/queues/orders"+pairs[0], pairs[1:]...) }
	}
	reads("a result", 2*size, page("/queues/orders/tasks/done0003?payload=1"))
	reads("forgetting", size/2, post("/tasks", "do", "forget", "sure", "1", "id", "done0003", "id", "done0004"))
	reads("cancelling", size/2, post("/tasks", "do", "cancel", "sure", "1", "id", "due0003", "id", "due0004"))
	reads("reviving those selected", size/2, post("/tasks", "do", "revive", "state", "dead", "id", "dead0000"))
	reads("the question", size/2, post("", "do", "revive", "state", "dead", "reason", "partner"))
	reads("reviving all with a reason", size/2, post("", "do", "revive", "state", "dead", "reason", "partner", "sure", "1"))
	reads("reviving all", size/2, post("", "do", "revive", "state", "dead", "sure", "1"))
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Dead)
}

// TestPage_ViewersShareOneLook: of a list, of a filter, of a task and of the figures, however many
// there are.
func TestPage_ViewersShareOneLook(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 300, 0, "a")
	kill(t, q, 200, "broken")
	s := newSite(t, rdb, Options{})
	for _, path := range []string{"/queues/orders", "/queues/orders?state=dead&reason=broken", "/queues/orders/tasks/a0250", "/"} {
		_, before := sent(t, rdb)
		start := time.Now()
		var viewers sync.WaitGroup
		for range 60 {
			viewers.Go(func() {
				response, err := s.http.Get(s.url + path)
				if err == nil {
					_ = response.Body.Close()
				}
			})
		}
		viewers.Wait()
		_, after := sent(t, rdb)
		// A list, the stocks and the figures, each a script, and again for each second that it has taken.
		require.LessOrEqual(t, after-before, 6*(1+int(time.Since(start)/time.Second)), "scripts for 60 viewers of %s", path)
	}
}

// fillDead makes n dead letters, the newest first, of which each but the last has the reason "broken".
func fillDead(t *testing.T, rdb redis.UniversalClient, queue string, n int) {
	t.Helper()
	p := rdb.Pipeline()
	for i := range n {
		id, reason := fmt.Sprintf("a%05d", i), "broken"
		if i == n-1 {
			reason = "poison"
		}
		p.ZAdd(t.Context(), "{Queue:"+queue+"}:dead", redis.Z{Score: 1.7e9 - float64(i), Member: id})
		p.HSet(t.Context(), "{Queue:"+queue+"}:state", id, "1:dead:"+reason)
	}
	_, err := p.Exec(t.Context())
	require.NoError(t, err)
}

// TestQueue_ChangesOfAllGoOn: a press does what there is time for, and says so; the next one goes
// on behind it, also where no letter has the reason.
func TestQueue_ChangesOfAllGoOn(t *testing.T) {
	t.Parallel()
	rdb, faults := redistest.Start(t).Faulty(t)
	q := newQueue(t, rdb, "orders")
	const n = 1990
	fillDead(t, rdb, "orders", n)
	s := newSite(t, rdb, Options{Write: true})
	s.token()
	faults.Delay(20 * time.Millisecond)
	s.page.busy = 100 * time.Millisecond
	press := func(do, reason string) (presses int, last answer) {
		t.Helper()
		form := []string{"do", do, "state", "dead", "reason", reason, "sure", "1"}
		for presses = 1; ; presses++ {
			got := s.post("/queues/orders", form...)
			require.Equal(t, http.StatusOK, got.StatusCode)
			place := regexp.MustCompile(`name="after" value="([^"]+)">\s+<button type="submit" name="do" value="revive">Revive the other `).FindStringSubmatch(got.body)
			if place == nil {
				got.lacks(t, "There are more")
				return presses, got
			}
			got.has(t, "There are more: go on by pressing the button again.")
			form = append(form[:8:8], "after", html.UnescapeString(place[1]))
			require.Less(t, presses, n/mostPerPage+1)
		}
	}
	presses, last := press("drop", "poison") // the last letter
	require.Greater(t, presses, 1)
	last.has(t, "1 dead letter dropped for good.")
	presses, _ = press("revive", "broken")
	require.Greater(t, presses, 1)
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, sluice.Stats{Due: n - 1, Lateness: stats.Lateness}, stats)
	s.post("/queues/orders", "do", "drop", "state", "dead", "reason", "<b>").has(t, "There is nothing to be changed: no task matches.")
}

// TestQueue_AChangeThatFailsKeepsWhatItHasDone, and tells how much that is.
func TestQueue_AChangeThatFailsKeepsWhatItHasDone(t *testing.T) {
	t.Parallel()
	rdb, faults := redistest.Start(t).Faulty(t)
	q := newQueue(t, rdb, "orders")
	fillDead(t, rdb, "orders", 1000)
	s := newSite(t, rdb, Options{Write: true})
	s.token()
	_, err := q.List(t.Context(), sluice.StateDead, sluice.TaskInfo{}, 1)
	require.NoError(t, err)
	_, err = q.Revive(t.Context(), "a00999") // the server knows the scripts now
	require.NoError(t, err)
	faults.DropReply(4) // of the second page that is revived
	s.post("/queues/orders", "do", "revive", "state", "dead", "sure", "1").has(t, "250 dead letters revived", "There are more", "answer was lost", `class="notice bad"`)
	s.post("/queues/orders", "do", "revive", "state", "dead", "sure", "1").has(t, "499 dead letters revived")
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1000, stats.Due)
}

// TestQueue_AFilterGoesOn: it shows what it has found while there was time, and the next page goes
// on.
func TestQueue_AFilterGoesOn(t *testing.T) {
	t.Parallel()
	rdb, faults := redistest.Start(t).Faulty(t)
	fillDead(t, rdb, "orders", 990)
	s := newSite(t, rdb, Options{})
	faults.Delay(20 * time.Millisecond)
	s.page.busy = time.Millisecond
	got := s.get("/queues/orders?state=dead&reason=poison")
	got.has(t, "250 letters were looked through", "No dead letter of those that were looked through")
	for range 3 {
		next := nextPage.FindStringSubmatch(got.body)
		require.NotNil(t, next)
		got = s.get(html.UnescapeString(next[1]))
	}
	got.has(t, "a00989")
	got.lacks(t, `rel="next"`)
}

// TestTask_LargeOnesAreNotRead: of a header, or of a payload, that is too large for a page it says
// so.
func TestTask_LargeOnesAreNotRead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q, err := sluice.NewQueue(rdb, "orders")
	require.NoError(t, err)
	large := strings.Repeat("x", mostHeader)
	for _, task := range []sluice.Task{
		{ID: "payload", Payload: []byte("small"), Header: map[string]string{"a": "b"}},
		{ID: "header", Payload: []byte("canary"), Header: map[string]string{"a": "b", "l": large}},
	} {
		_, err := q.Enqueue(t.Context(), task)
		require.NoError(t, err)
	}
	stored, err := rdb.HGet(t.Context(), "{Queue:orders}:tasks", "payload").Result()
	require.NoError(t, err)
	stored += strings.Repeat("x", mostStored) // by another client, which has no limit
	require.NoError(t, rdb.HSet(t.Context(), "{Queue:orders}:tasks", "payload", stored).Err())
	s := newSite(t, rdb, Options{})
	for _, query := range []string{"", "?payload=1"} {
		s.get("/queues/orders/tasks/payload"+query).has(t, "The header is not shown", "Payload and header have 4.2 MB")
		got := s.get("/queues/orders/tasks/header" + query)
		got.has(t, "There is more of the header")
		require.Less(t, len(got.body), mostHeader)
	}
	s.get("/queues/orders/tasks/header?payload=1").has(t, "canary")
}
