package web

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestQueues_SortedBeforeTheyAreCut: of more queues than a page lists, the worst are on it, and the
// sums are of all.
func TestQueues_SortedBeforeTheyAreCut(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for i := range 330 {
		n := 1
		if i == 329 {
			n = 50
		}
		fill(t, newQueue(t, rdb, fmt.Sprintf("q%03d", i)), n, 0, "task")
	}
	s := newSite(t, rdb, Options{})
	got := s.get("/?sort=due")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Contains(t, got.body, `data-key="q329"`)
	require.Contains(t, got.body, "330 queues")
	require.Contains(t, got.body, "379 due")
	require.Contains(t, got.body, "130 others not listed")
}

// TestShared_SaysHowOldItIs, also of a look that is made from older ones.
func TestShared_SaysHowOldItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		inner := &shared[int]{every: time.Second, look: func(ctx context.Context) (int, error) {
			if hangs {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}
			return 1, nil
		}}
		outer := &shared[int]{every: time.Second, look: inner.get}
		ageOf := func() time.Duration {
			var a age
			_, err := outer.get(withAge(t.Context(), &a))
			require.NoError(t, err)
			return time.Since(a.of(time.Now()))
		}
		require.Zero(t, ageOf())
		hangs = true
		time.Sleep(10 * time.Second)
		require.Equal(t, 10*time.Second+staleAfter, ageOf(), "the inner look hangs, so that the outer one is of what there was")
		time.Sleep(time.Minute) // the look under way ends
	})
}

// TestPage_SaysHowOldItsFiguresAre, while Redis hangs.
func TestPage_SaysHowOldItsFiguresAre(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	fill(t, newQueue(t, rdb, "orders"), 3, 0, "task")
	s := newSite(t, rdb, Options{})
	require.NotContains(t, s.get("/").body, "As of")
	server.Pause(t)
	defer server.Resume(t)
	time.Sleep(old) // the figures get old
	got := s.get("/")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Regexp(t, `As of \S+s ago`, got.body)
	require.Contains(t, got.body, "3 due")
}

// TestTask_ItsKindStays when the page is brought up to date: that reads no payload, beside which the
// kind is stored.
func TestTask_ItsKindStays(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a", Kind: "confirm", Expires: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	s := newSite(t, rdb, Options{})
	got := s.get("/queues/orders/tasks/a")
	require.Contains(t, got.body, "confirm")
	require.Contains(t, got.body, "Expires")
	_, live, found := strings.Cut(got.body, `<section id="story" data-live`)
	require.True(t, found)
	live, _, _ = strings.Cut(live, "</section>")
	require.NotContains(t, live, "confirm", "what is not read again would vanish")
}

// TestPage_OnlyFiguresAreReadAgain: a question and an error stay as they are. What showed them may
// have been a form, whose address has no page; who opens it is sent to the queue.
func TestPage_OnlyFiguresAreReadAgain(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	s := newSite(t, rdb, Options{Write: true, Prefix: "/ops"})
	fill(t, newQueue(t, rdb, "orders"), 3, 0, "task")
	for _, path := range []string{"/", "/queues/orders", "/queues/orders/tasks/task0000", "/locks", "/locks/a", "/queues/orders/tasks"} {
		got := s.get(path)
		require.Equal(t, http.StatusOK, got.StatusCode, path)
		got.has(t, "data-live")
	}
	s.get("/queues/orders/tasks").has(t, "<title>orders")
	for _, got := range []answer{
		s.post("/queues/orders", "do", "cancel", "state", "due"),
		s.post("/queues/orders/tasks", "do", "cancel", "state", "due", "id", "task0000"),
		s.post("/queues/orders/tasks/task0000", "do", "cancel"),
	} {
		got.has(t, "Are you sure?")
		got.lacks(t, "data-live")
	}
	for _, got := range []answer{s.get("/nowhere"), s.post("/queues/orders/tasks", "do", "eat")} {
		require.GreaterOrEqual(t, got.StatusCode, 400)
		got.lacks(t, "data-live")
	}
}
