package web

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// fillGroups has n tasks wait in two groups, behind two that are scheduled.
func fillGroups(t *testing.T, q *sluice.Queue, n int) {
	t.Helper()
	var tasks []sluice.Task
	for _, group := range []string{"a\n_b", "b"} {
		tasks = append(tasks, sluice.Task{ID: "scheduled-" + formValue(group), Group: group, Delay: time.Hour})
	}
	for i := range n {
		tasks = append(tasks, sluice.Task{ID: fmt.Sprintf("waiting%04d", i), Group: tasks[i%2].Group, Delay: 2 * time.Hour})
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
}

// TestGroups_AreShownWhereThereAreAny: the tab of what waits has its number, its list is filtered
// by group, and lists of other states say the group.
func TestGroups_AreShownWhereThereAreAny(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{})
	fill(t, newQueue(t, rdb, "mails"), 2, 0, "a")
	got := s.get("/queues/mails")
	got.lacks(t, `class="tab waiting"`, ">Group<")
	s.get("/").lacks(t, "in groups")
	s.get("/queues/mails?state=waiting").has(t, `class="tab waiting"`, "Tasks that wait in their groups", "No task waits in its group.")
	s.get("/queues/mails?state=waiting&group=none").has(t, "Tasks that wait in group <bdi>none</bdi>", "No task waits in this group.")

	q := newQueue(t, rdb, "bookings")
	_, err := q.EnqueueBatch(t.Context(), []sluice.Task{
		{ID: "a1", Group: "a"}, {ID: "a2", Group: "a"}, {ID: "a3", Group: "a", Delay: time.Hour - time.Second/2}, {ID: "b1", Group: "b"}, {ID: "b2", Group: "b"}, {ID: "plain"},
	})
	require.NoError(t, err)
	s.later()
	s.get("/").has(t, "3 waiting in groups")
	got = s.get("/queues/bookings")
	got.has(t, `class="tab waiting"`, `<span class="tab-count">3</span>`, "for others of their groups", ">Group</th>", `data-label="Group"><a href="/queues/bookings?group=a&amp;state=waiting">`)
	got.lacks(t, ">Empty<")
	got = s.get("/queues/bookings?state=waiting")
	got.has(t, "a2", "a3", "b2", "in 59m", " ago</time>", ">Group</th>")
	got.lacks(t, "tasks/a1", "tasks/b1", "Put off")
	got = s.get("/queues/bookings?state=waiting&group=a")
	got.has(t, "tasks/a2", "tasks/a3")
	got.lacks(t, "tasks/b2")
	require.Equal(t, "/queues/bookings?group=b&state=waiting", s.get("/queues/bookings?state=waiting&in=+b").Request.URL.RequestURI(), "as find does")
	require.NoError(t, newQueue(t, rdb, "bookings").Purge(t.Context()))
	s.later()
	s.get("/queues/bookings").has(t, ">Empty<")
}

// TestGroups_ATaskSaysWhatHoldsItUp: the tasks of its group that are in play, as far as they are
// found.
func TestGroups_ATaskSaysWhatHoldsItUp(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	_, err := q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a1", Group: "a"}, {ID: "b1", Group: "b"}, {ID: "a2", Group: "a"}, {ID: "a3", Group: "a"}})
	require.NoError(t, err)
	s := newSite(t, rdb, Options{})
	url := "/queues/" + segment(name) + "/tasks/"
	inPlay := func(id string) string {
		s.later()
		_, part, found := strings.Cut(s.get(url+id).body, "Held up by")
		require.True(t, found)
		part, _, _ = strings.Cut(part, "<dt>")
		return part
	}
	got := s.get(url + "a2")
	got.has(t, ">Waiting<", "<dt>Group</dt>", html.EscapeString(s.page.groupURL(name, "a")), "Due since")
	require.Contains(t, inPlay("a2"), "due</span>")
	require.Contains(t, inPlay("a2"), url+"a1")
	require.NotContains(t, inPlay("a2"), "tasks/b1")
	got = s.get(url + "a1")
	got.has(t, "<dt>Group</dt>")
	got.lacks(t, "Held up by")

	entries, err := q.Claim(t.Context(), 1, time.Hour)
	require.NoError(t, err)
	require.Contains(t, inPlay("a2"), "leased</span>")
	require.NoError(t, q.Retry(t.Context(), time.Hour, "broken", entries[0]))
	require.Contains(t, inPlay("a2"), "scheduled</span>")
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{PerGroup: mostInPlay + 1}))
	for i := range mostInPlay + 2 {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint("a-", i), Group: "a"})
		require.NoError(t, err)
	}
	last := fmt.Sprint("a-", mostInPlay+1)
	require.Equal(t, mostInPlay, strings.Count(inPlay(last), "<li>"))
	require.Contains(t, inPlay(last), "and others")

	fill(t, q, mostPerPage, -time.Hour, "plain") // before those of the group
	_, err = q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "c1", Group: "c"}, {ID: "c2", Group: "c"}})
	require.NoError(t, err)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{}))
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "c3", Group: "c"})
	require.NoError(t, err)
	require.Contains(t, inPlay("c3"), fmt.Sprintf("none of the first %d tasks", mostPerPage))
}

// TestGroups_WaitingTasksAreChanged as those of other states are: put off and cancelled, and made
// due now where they are not due.
func TestGroups_WaitingTasksAreChanged(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	var tasks []sluice.Task
	for i := range 6 {
		tasks = append(tasks, sluice.Task{ID: fmt.Sprint("a", i), Group: "a\r\n\xff"})
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true})
	list, value := s.page.groupURL(name, tasks[0].Group), formValue(tasks[0].Group)
	got := s.get(list)
	got.has(t, `<input type="hidden" name="group" value="`+value+`">`, `value="delay"`, `value="cancel"`)
	got.lacks(t, `value="run"`, `value="revive"`, `value="forget"`)
	post := s.page.tasksURL(name)
	form := []string{"state", "waiting", "group", value}
	got = s.post(post, append(form, "do", "cancel", "id", "a1", "id", "a2")...)
	got.has(t, "Cancel 2 tasks?", `name="group" value="`+value+`"`)
	got = s.post(post, append(form, "do", "cancel", "sure", "1", "id", "a1", "id", "a2")...)
	got.has(t, "2 tasks cancelled")
	require.Equal(t, list, got.Request.URL.RequestURI(), "back to the list")
	s.post(post, append(form, "do", "delay", "for", "1h", "id", "a3")...).has(t, "1 task put off")
	e, err := q.Get(t.Context(), "a3")
	require.NoError(t, err)
	require.Equal(t, sluice.StateWaiting, e.State)
	require.Greater(t, time.Until(e.Due), time.Minute)

	task := "/queues/" + segment(name) + "/tasks/a3"
	s.get(task).has(t, "Due now", "in 59m", `value="delay"`, `value="cancel"`)
	got = s.post(task, "do", "run")
	got.has(t, "1 task due now", ">Waiting<", "Due since")
	got.lacks(t, `value="run"`)
	s.post(task, "do", "drop", "sure", "1").has(t, "1 other had changed")
	s.post(task, "do", "cancel", "sure", "1").has(t, "1 task cancelled")
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.GroupWaiting)
}

// TestPage_HostileGroups: any bytes are shown as escapes, in each list and on a task's page, and
// what leads to a group leads to that one, also when it is typed as it is shown.
func TestPage_HostileGroups(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	var groups []string
	var tasks []sluice.Task
	for _, group := range append(hostile, binary()[1:257]) {
		group = strings.ReplaceAll(group[:min(len(group), 256)], "\x00", "0")
		groups = append(groups, group)
		for range 2 {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint("id-", len(tasks)), Group: group})
		}
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true})
	for _, state := range []string{"due", "waiting"} {
		got := s.get("/queues/" + segment(name) + "?n=250&state=" + state)
		got.requireSafe(t)
		urls := links(got)
		for _, group := range groups {
			got.has(t, string(listName(group)))
			require.Contains(t, urls, s.page.groupURL(name, group), "%q", group)
		}
	}
	for i, group := range groups {
		id := fmt.Sprint("id-", 2*i+1)
		got := s.get(s.page.groupURL(name, group))
		require.Equal(t, http.StatusOK, got.StatusCode)
		got.requireSafe(t)
		got.has(t, "tasks/"+id+`"`)
		require.Equal(t, 1, strings.Count(got.body, `aria-label="Select id-`), "%q: no other group", group)

		got = s.get("/queues/" + segment(name) + "/tasks/" + id)
		got.requireSafe(t)
		require.Contains(t, links(got), s.page.groupURL(name, group))
		require.Contains(t, links(got), s.page.taskURL(name, fmt.Sprint("id-", 2*i)), "what is in play")

		typed := s.get("/queues/" + segment(name) + "?state=waiting&in=" + url.QueryEscape(shown(group)))
		typed.requireSafe(t)
		if !strings.Contains(group, `\`) && strings.TrimSpace(group) == group {
			require.Equal(t, s.page.groupURL(name, group), typed.Request.URL.RequestURI(), "%q", group)
		}
	}
	s.get("/queues/" + segment(name) + "?in=" + url.QueryEscape("<script>nothing\u202e\x1b\x00")).requireSafe(t)
	s.get("/queues/" + segment(name) + "?state=waiting&group=%25zz").requireSafe(t)
}
