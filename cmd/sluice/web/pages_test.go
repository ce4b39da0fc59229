package web

import (
	"bytes"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// fill puts n tasks into a queue.
func fill(t *testing.T, q *sluice.Queue, n int, delay time.Duration, prefix string) {
	t.Helper()
	var tasks []sluice.Task
	for i := range n {
		tasks = append(tasks, sluice.Task{ID: fmt.Sprintf("%s%04d", prefix, i), Payload: []byte("canary payload"), Delay: delay})
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
}

// kill makes n dead letters of the first tasks.
func kill(t *testing.T, q *sluice.Queue, n int, reason string) {
	t.Helper()
	entries, err := q.Claim(t.Context(), n, time.Minute)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, q.Bury(t.Context(), reason, e))
	}
}

// TestQueues_ListsThem with their figures, sorted and filtered as asked; a queue that drains stays
// for a while.
func TestQueues_ListsThem(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{Write: true})
	s.get("/").has(t, "There is no queue with a task in it")
	a, b := newQueue(t, rdb, "queue-a"), newQueue(t, rdb, "queue-b")
	fill(t, a, 3, 0, "a")
	fill(t, b, 1200, time.Hour, "b")
	require.NoError(t, b.Pause(t.Context(), 0))
	s.later()
	got := s.get("/")
	got.has(t, "2 queues, 1 paused · 3 due · 1,200 scheduled · 0 leased · 0 dead")
	require.Less(t, strings.Index(got.body, "queue-a</bdi>"), strings.Index(got.body, "queue-b</bdi>"))
	s.get("/?sort=name").has(t, `aria-sort="ascending"`, ">Worst first<")
	got = s.get("/?sort=scheduled")
	got.has(t, `aria-sort="descending"`)
	require.Greater(t, strings.Index(got.body, "queue-a</bdi>"), strings.Index(got.body, "queue-b</bdi>"))
	got = s.get("/?q=-b")
	got.has(t, "1 queue, 1 paused", "queue-b</bdi>")
	got.lacks(t, "queue-a</bdi>")
	s.get("/?q=none-such").has(t, "No queue has this in its name")

	require.NoError(t, a.Purge(t.Context()))
	s.later()
	s.get("/").has(t, "queue-a</bdi>", "2 queues")
	s.page.watch.series = map[string]*series{} // some minutes later
	s.later()
	s.get("/").lacks(t, "queue-a</bdi>")
}

var nextPage = regexp.MustCompile(`href="([^"]*)" rel="next"`)

// TestQueue_PagesListEachTaskOnce: whatever the state.
func TestQueue_PagesListEachTaskOnce(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name, sluice.WithRetention(time.Hour))
	fill(t, q, 25, 0, "done")
	finishAll(t, q, 25, "result")
	fill(t, q, 25, 0, "dead")
	kill(t, q, 25, "broken")
	fill(t, q, 25, 0, "leased")
	_, err := q.Claim(t.Context(), 25, time.Minute)
	require.NoError(t, err)
	fill(t, q, 25, 0, "due")
	fill(t, q, 23, time.Hour, "scheduled")
	fillGroups(t, q, 25)
	newSite(t, rdb, Options{}).requireEachOnce(name, 25)
}

// requireEachOnce turns the pages of a queue that has so many tasks in each state, whose IDs begin
// with it.
func (s *site) requireEachOnce(name string, n int) {
	s.Helper()
	for _, state := range states {
		path, seen, pages := s.page.queueURL(name)+"?n=10&state="+state.String(), map[string]int{}, 0
		for path != "" {
			got := s.get(path)
			require.Equal(s, http.StatusOK, got.StatusCode)
			path, pages = "", pages+1
			for _, url := range links(got) {
				if _, id, found := strings.Cut(url, "/tasks/"); found {
					seen[id]++
				}
			}
			if next := nextPage.FindStringSubmatch(got.body); next != nil {
				path = html.UnescapeString(next[1])
			}
			require.LessOrEqual(s, pages, 10)
		}
		require.Len(s, seen, n, state)
		for id, n := range seen {
			require.Equal(s, 1, n, id)
			require.True(s, strings.HasPrefix(id, state.String()), id)
		}
		require.Equal(s, (n+9)/10, pages, state)
	}
}

// TestQueue_FiltersLettersByReason, and revives those alone.
func TestQueue_FiltersLettersByReason(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	fill(t, q, 30, 0, "down")
	kill(t, q, 30, "503 from <partner>")
	fill(t, q, 7, 0, "poison")
	kill(t, q, 7, "cannot parse")
	s := newSite(t, rdb, Options{Write: true})
	got := s.get("/queues/" + segment(name) + "?state=dead&reason=parse")
	got.has(t, "poison0000", "poison0006", "Revive all that match…")
	got.lacks(t, "down0000")
	s.get("/queues/"+segment(name)+"?state=dead&reason=nothing").has(t, "No dead letter has this in its reason")
	s.post("/queues/"+segment(name), "do", "revive", "state", "dead", "reason", "<PARTNER>").has(t, "Revive 30 dead letters?", "Only: Reason contains <b><bdi>&lt;PARTNER&gt;")
	s.post("/queues/"+segment(name), "do", "revive", "state", "dead", "reason", "<PARTNER>", "sure", "1").has(t, "30 dead letters revived")
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 30, stats.Due)
	require.EqualValues(t, 7, stats.Dead)
	s.post("/queues/"+segment(name), "do", "revive", "state", "dead", "sure", "1").has(t, "7 dead letters revived")
	s.post("/queues/"+segment(name), "do", "revive", "state", "dead", "sure", "1").has(t, "0 dead letters revived")
}

// TestQueue_SelectionsChangeWhatIsSelected and nothing else; what is removed for good is asked
// back.
func TestQueue_SelectionsChangeWhatIsSelected(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	var log bytes.Buffer
	s := newSite(t, rdb, Options{Write: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	state := func(id string) sluice.State {
		e, err := q.Get(t.Context(), id)
		if isNotFound(err) {
			return sluice.StateAbsent
		}
		require.NoError(t, err)
		return e.State
	}
	fill(t, q, 4, 0, "d")
	kill(t, q, 4, "broken")
	fill(t, q, 4, time.Hour, "s")
	tasks := "/queues/" + segment(name) + "/tasks"
	s.post(tasks, "do", "revive", "state", "dead").has(t, "Nothing was selected", `class="notice bad"`)
	s.post(tasks, "do", "revive", "state", "dead", "id", "d0000", "id", "s0000").has(t, "Revive 2 dead letters?", `name="sure"`)
	require.Equal(t, sluice.StateDead, state("d0000"), "more than one: not before the visitor is sure")
	s.post(tasks, "do", "revive", "sure", "1", "state", "dead", "id", "d0000", "id", "s0000").has(t, "1 task revived", "1 other had changed meanwhile")
	require.Equal(t, sluice.StateDue, state("d0000"))
	s.post(tasks, "do", "drop", "state", "dead", "id", "d0001").has(t, "Drop 1 dead letter?", "d0001", "Drop for good")
	require.Equal(t, sluice.StateDead, state("d0001"), "not before the visitor is sure")
	// A letter that was revived meanwhile is no letter, a task that has died is no task: neither is
	// removed.
	s.post(tasks, "do", "drop", "sure", "1", "id", "d0001", "id", "d0000", "id", "s0003").has(t, "1 task dropped for good", "2 others had changed")
	require.Equal(t, sluice.StateAbsent, state("d0001"))
	require.Equal(t, sluice.StateDue, state("d0000"))
	require.Equal(t, sluice.StateScheduled, state("s0003"))
	s.post(tasks, "do", "cancel", "sure", "1", "id", "d0002", "id", "s0003").has(t, "1 task cancelled", "1 other had changed")
	require.Equal(t, sluice.StateDead, state("d0002"))
	require.Equal(t, sluice.StateAbsent, state("s0003"))
	s.post(tasks, "do", "run", "id", "s0000").has(t, "1 task due now")
	require.Equal(t, sluice.StateDue, state("s0000"))
	s.post(tasks, "do", "delay", "for", "10m", "id", "s0000", "id", "d0000").has(t, "Put off 2 tasks?", `name="for" value="10m"`)
	s.post(tasks, "do", "delay", "sure", "1", "for", "10m", "id", "s0000", "id", "d0000").has(t, "2 tasks put off")
	require.Equal(t, sluice.StateScheduled, state("s0000"))
	require.Equal(t, sluice.StateScheduled, state("d0000"))

	for _, bad := range [][]string{{"do", "nothing", "id", "s0001"}, {"do", "delay", "for", "x", "id", "s0001"}, {"do", "delay", "for", "-1s", "id", "s0001"}, {"do", "delay", "id", "s0001"}, {"do", "delay", "for", "x", "id", "s0001", "id", "s0002"}, {"do", "run", "id", "%zz"}} {
		require.Equal(t, http.StatusBadRequest, s.post(tasks, bad...).StatusCode, bad)
	}
	many := []string{"do", "cancel", "sure", "1"}
	for range mostPerPage + 1 {
		many = append(many, "id", "s0001")
	}
	require.Equal(t, http.StatusBadRequest, s.post(tasks, many...).StatusCode)
	require.Equal(t, http.StatusBadRequest, s.post(tasks, "do", "run", "id", strings.Repeat("x", mostForm)).StatusCode)
	require.Equal(t, sluice.StateScheduled, state("s0001"))
	require.Contains(t, log.String(), "revive")
	require.Contains(t, log.String(), name)
	require.NotContains(t, log.String(), "canary")
}

// TestTask_Story: what the page tells of a task in each state, and what can be done with it there.
func TestTask_Story(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	const half = time.Second / 2 // for what the page does not know of the server's clock
	_, err := q.Enqueue(t.Context(), sluice.Task{
		ID: "a", Kind: "e<mail", Delay: time.Hour - half, Payload: []byte("canary"),
		Header: map[string]string{"tenant": "north & south"},
	})
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true})
	url := "/queues/" + segment(name) + "/tasks/a"
	got := s.get(url)
	got.has(t, ">Scheduled<", "in 59m 59s", "none yet", "tenant", "north &amp; south", "Kind <span", "e&lt;mail", `value="run"`, "6 bytes", "Show the payload")
	got.lacks(t, "canary", `value="revive"`)
	s.get(url+"?payload=1").has(t, "canary", "Hide the payload")
	s.post(url, "do", "run").has(t, "1 task due now", ">Due<", "ago")
	entry, err := q.Claim(t.Context(), 1, time.Minute-half)
	require.NoError(t, err)
	s.later()
	got = s.get(url)
	got.has(t, ">Leased<", "in 59s", "<dd>1</dd>")
	got.lacks(t, `value="run"`, `value="delay"`)
	require.NoError(t, q.Bury(t.Context(), "the partner says no", entry[0]))
	s.later()
	got = s.get(url)
	got.has(t, ">Dead<", "the partner says no", "ago", `value="revive"`, `value="drop"`)
	got.lacks(t, `value="cancel"`)
	s.post(url, "do", "revive").has(t, ">Due<", "none yet", "1 task revived")
	s.post(url, "do", "delay", "for", "1h").has(t, ">Scheduled<", "1 task put off")
	s.post(url, "do", "cancel").has(t, "Cancel 1 task?")
	s.post(url, "do", "drop", "sure", "1").has(t, "1 other had changed")
	s.post(url, "do", "cancel", "sure", "1").has(t, "1 task cancelled")
	got = s.get(url)
	require.Equal(t, http.StatusNotFound, got.StatusCode)
	got.has(t, "There is no such task")
	require.Equal(t, http.StatusBadRequest, s.post(url, "do", "bury").StatusCode)
}

func TestPayload_TextOrHexAndNeverTooMuch(t *testing.T) {
	require.Equal(t, payload{Size: 3}, newPayload([]byte("abc"), false))
	require.Equal(t, "a\tb\nc", newPayload([]byte("a\tb\nc"), true).Text)
	p := newPayload([]byte("\x1b[31m"), true)
	require.True(t, p.IsHex)
	require.Contains(t, p.Text, "1b 5b 33 31 6d")
	require.NotContains(t, p.Text, "\x1b")
	p = newPayload([]byte(strings.Repeat("é", mostPayload)), true)
	require.True(t, p.Cut)
	require.False(t, p.IsHex)
	require.Len(t, p.Text, mostPayload)
	p = newPayload([]byte("x"+strings.Repeat("é", mostPayload)), true)
	require.False(t, p.IsHex, "cut in the middle of a character")
	p = newPayload(bytes.Repeat([]byte{0xff}, 1<<20), true)
	require.True(t, p.IsHex && p.Cut)
	require.Less(t, len(p.Text), 5*mostPayload)
}

// TestLocks_ShowOwnersAndNoToken: and a lock is forced open only by its name.
func TestLocks_ShowOwnersAndNoToken(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{Write: true})
	s.get("/locks").has(t, "No lock is held")
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Hour), sluice.WithOwner("cron <1>"))
	require.NoError(t, err)
	lock, err := locker.TryLock(t.Context(), "nightly")
	require.NoError(t, err)
	require.NoError(t, rdb.Set(t.Context(), "Lock:foreign", "worker:c0ffee-77f19e3a-secret", 0).Err())
	for range 2 {
		_, err = locker.TryLock(t.Context(), "gate", sluice.WithPermits(3))
		require.NoError(t, err)
	}
	line := make([]redis.Z, 1234) // of processes that do not listen
	for i := range line {
		line[i] = redis.Z{Score: float64(i), Member: fmt.Sprint("DEAD", i, ":1")}
	}
	line[1].Member, line[2].Member = "DEAD1:cron <2>:1:50", "DEAD2:cron 3:1:50"
	require.NoError(t, rdb.ZAdd(t.Context(), "{Lock:nightly}:line", line...).Err())
	s.later()
	for _, path := range []string{"/locks", "/locks/nightly", "/locks/foreign", "/locks?match=nightly"} {
		got := s.get(path)
		got.lacks(t, lock.Token(), lock.Token()[len(lock.Token())-8:], "c0ffee-77f19e3a", "secret")
	}
	all := s.get("/locks")
	all.has(t, "3 locks held", "2 held by <bdi>cron &lt;1&gt;</bdi> (2)", "cron &lt;1&gt;", "no label", "never by itself", `data-label="Processes in line">1,234<`, `zero" data-label="Processes in line">0<`)
	require.Regexp(t, `59m 5\ds|1h 00m`, all.body)
	s.get("/locks?match=night*").has(t, "1 lock held with such names", "nightly")
	s.get("/locks?match=other*").has(t, "No lock is held whose whole name matches")
	s.get("/locks/nightly").has(t, ">Held<", "cron &lt;1&gt;", "<dt>Processes in line</dt><dd>1,234</dd>", "<dt>First in line</dt><dd><bdi>cron &lt;2&gt;</bdi>, <bdi>cron 3</bdi></dd>")
	s.get("/locks/gate").lacks(t, "First in line")
	s.get("/locks/gate").has(t, ">Held<", "2 held by <bdi>cron &lt;1&gt;</bdi> (2)")
	s.post("/locks/nightly", "do", "force", "name", "other").has(t, "left alone", ">Held<")
	s.post("/locks/nightly", "do", "force").has(t, "left alone", ">Held<")
	require.Equal(t, http.StatusBadRequest, s.post("/locks/nightly", "do", "unlock", "name", "nightly").StatusCode)
	s.post("/locks/nightly", "do", "force", "name", "nightly").has(t, "forced open", ">Free<")
	s.post("/locks/nightly", "do", "force", "name", "nightly").has(t, "was free already")
}

// TestQueue_PauseResumePurge: the queue's name is typed before it is purged.
func TestQueue_PauseResumePurge(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	fill(t, q, 3, 0, "a")
	s := newSite(t, rdb, Options{Write: true})
	url := "/queues/" + segment(name)
	paused := s.post(url, "do", "pause", "for", "30m")
	paused.has(t, "The queue is paused", ">Paused<", `value="resume"`)
	require.Regexp(t, `29m 59s|30m 00s`, paused.body) // the server rounds the end up
	entries, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.Empty(t, entries)
	resumed := s.post(url, "do", "resume")
	resumed.has(t, "The queue goes on", ">No worker<", "none seen for a day", "loops of your own (Claim, Pop) are not listed", `value="pause"`)
	resumed.lacks(t, "Running")
	require.NoError(t, rdb.ZAdd(t.Context(), "{Queue:"+name+"}:line", redis.Z{Score: 1, Member: "client"}).Err())
	s.post(url, "do", "pause", "for", "0s").has(t, ">Paused<", "until it is resumed", "1 client waits for tasks")
	for _, bad := range []string{"", "x", "-1s", "1000000h"} {
		require.Equal(t, http.StatusBadRequest, s.post(url, "do", "pause", "for", bad).StatusCode, bad)
	}
	for _, typed := range []string{"", "other", strings.ToUpper(name)} {
		s.post(url, "do", "purge", "name", typed).has(t, "Nothing was purged")
	}
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, stats.Due)
	s.post(url, "do", "purge", "name", name).has(t, "The queue is purged")
	stats, err = q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Due)
	require.Equal(t, http.StatusBadRequest, s.post(url, "do", "drain").StatusCode)
}

// TestQueue_LimitsAreShownAndSet beside the pause, with what is wrong in a form said; and every
// change is told to the logger.
func TestQueue_LimitsAreShownAndSet(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "mails")
	fill(t, q, 5, 0, "a")
	var log bytes.Buffer
	s := newSite(t, rdb, Options{Write: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	limits := func() sluice.Limits {
		l, err := q.Limits(t.Context())
		require.NoError(t, err)
		return l
	}
	s.get("/").lacks(t, "3 running", ">Limits<")
	got := s.get("/queues/mails")
	got.has(t, `value="limit"`, ">No worker<")
	got.lacks(t, `value="unlimit"`, ">Limits<")
	s.post("/queues/mails", "do", "limit", "running", " 2 ", "rate", "10/500ms", "burst", "5").has(t, "The queue has limits: 2 running, 10/500ms, burst 5.",
		">Limits<", `class="soft">2 running, 10/500ms, burst 5<`, `name="running" inputmode="numeric" value="2"`, `name="rate" value="10/500ms"`, `value="unlimit"`)
	require.Equal(t, sluice.Limits{Running: 2, Rate: 10, Per: 500 * time.Millisecond, Burst: 5}, limits())
	entries, err := q.Claim(t.Context(), 9, time.Minute)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	s.later()
	for _, path := range []string{"/", "/queues/mails"} {
		s.get(path).has(t, `class="chip full">At its limit<`, "2 of 2 running; 10/500ms, burst 5")
	}
	s.post("/queues/mails", "do", "pause", "for", "0s").has(t, ">Paused<", ">At its limit<")

	for _, bad := range [][]string{{}, {"running", "0"}, {"running", "x"}, {"rate", "10"}, {"rate", "<b>/s"}, {"burst", "5"}, {"running", "1", "burst", "5"}} {
		got := s.post("/queues/mails", append(bad, "do", "limit")...)
		require.Equal(t, http.StatusBadRequest, got.StatusCode, bad)
		got.lacks(t, "<b>/s")
	}
	require.Equal(t, 2, limits().Running)
	s.post("/queues/mails", "do", "limit", "running", "3", "per-group", "4").has(t, "3 running, 4 per group", `name="per-group" inputmode="numeric" value="4"`)
	require.Equal(t, sluice.Limits{Running: 3, PerGroup: 4}, limits())
	s.post("/queues/mails", "do", "limit", "running", "3").has(t, ">Limits<", `>3 running<`)
	require.Equal(t, sluice.Limits{Running: 3}, limits(), "the rate is taken away")
	s.post("/queues/mails", "do", "unlimit").has(t, "The queue has no limits", ">Paused<")
	require.Zero(t, limits())
	require.Equal(t, 3, strings.Count(log.String(), `msg="sluice: page: limit" queue=mails`), log.String())
	require.Equal(t, 1, strings.Count(log.String(), `msg="sluice: page: unlimit" queue=mails`))

	s.post("/queues/empty", "do", "limit", "rate", "3/d").has(t, ">No worker<", "3/d, burst 1")
}

// TestQueue_LimitsAreForThoseWhoMayWrite: others see them.
func TestQueue_LimitsAreForThoseWhoMayWrite(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 3}))
	s := newSite(t, rdb, Options{})
	url := "/queues/" + segment(name)
	got := s.get(url)
	got.has(t, ">Limits<", ">3 running<")
	got.lacks(t, `value="limit"`, `name="running"`)
	for _, do := range []string{"limit", "unlimit"} {
		require.Equal(t, http.StatusForbidden, s.post(url, "do", do, "running", "5").StatusCode)
	}
	s = newSite(t, rdb, Options{Write: true})
	for _, do := range []string{"limit", "unlimit"} {
		require.Equal(t, http.StatusForbidden, s.send(s.form(url, map[string][]string{"do": {do}, "running": {"5"}})).StatusCode, "without the token")
	}
	l, err := q.Limits(t.Context())
	require.NoError(t, err)
	require.Equal(t, sluice.Limits{Running: 3}, l)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{}))
}

// TestVisit_NoticeIsShownOnce, and by a page, not by what its script asks for.
func TestVisit_NoticeIsShownOnce(t *testing.T) {
	s := newSite(t, redistest.Redis(t).Client(t), Options{Write: true})
	url := "/queues/" + segment(redistest.Name(t))
	s.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	require.Equal(t, http.StatusSeeOther, s.post(url, "do", "purge", "name", "other").StatusCode)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+url, nil)
	require.NoError(t, err)
	r.Header.Set("Sluice-Live", "1")
	s.send(r).lacks(t, "Nothing was purged")
	s.get(url).has(t, "Nothing was purged")
	s.get(url).lacks(t, "Nothing was purged")
}

// TestPage_RedisIsDown: each page says so, without a password of the client.
func TestPage_RedisIsDown(t *testing.T) {
	server := redistest.Start(t)
	s := newSite(t, server.Client(t), Options{Write: true})
	token := s.token()
	server.Down()
	for _, path := range []string{"/queues/a", "/queues/a/tasks/b", "/locks/a"} {
		got := s.get(path)
		require.Equal(t, http.StatusServiceUnavailable, got.StatusCode, path)
		got.has(t, "Redis does not answer", `id="main"`)
	}
	require.NotEmpty(t, token)
	require.Equal(t, http.StatusServiceUnavailable, s.post("/queues/a", "do", "resume").StatusCode)
}

// TestQueue_ShowsItsStocks, with items of any bytes, and how much of each tasks hold.
func TestQueue_ShowsItsStocks(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{})
	q := newQueue(t, rdb, "orders")
	ctx := t.Context()
	fill(t, q, 1, 0, "a")
	require.NotContains(t, s.get("/queues/orders").body, "For sale")
	require.NoError(t, q.SetStock(ctx, "phone", 2000))
	require.NoError(t, q.SetStock(ctx, "<script>", 1))
	_, err := q.Enqueue(ctx, sluice.Task{ID: "order", Take: sluice.Take{Item: "phone", Units: 1500}})
	require.NoError(t, err)
	s.later()
	got := s.get("/queues/orders")
	got.has(t, "For sale", "phone", `data-label="Left">500<`, `data-label="Held by tasks">1,500<`, `data-label="Total">2,000<`)
	require.NotContains(t, got.body, "<script>")
}
