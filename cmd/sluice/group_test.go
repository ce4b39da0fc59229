package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestLs_TasksThatWaitInGroups: by group, page by page, or those of one group; and they are
// cancelled as others are.
func TestLs_TasksThatWaitInGroups(t *testing.T) {
	s := newStage(t)
	s.reset()
	q, err := sluice.NewQueue(s.rdb, "bookings")
	require.NoError(t, err)
	for _, group := range []string{"b", "a"} {
		for i := range 3 {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(group, i), Group: group})
			require.NoError(t, err)
		}
	}
	var page tasksJSON
	var ids []string
	for after := ""; ; after = page.After {
		page = tasksJSON{}
		s.json(exitOK, &page, strings.Fields("ls bookings --state waiting --limit 1 --after="+after)...)
		if len(page.Tasks) == 0 {
			break
		}
		require.Equal(t, "waiting", page.Tasks[0].State)
		ids = append(ids, page.Tasks[0].Group+":"+page.Tasks[0].ID)
		if page.After == "" {
			break
		}
	}
	require.Equal(t, []string{"a:a1", "a:a2", "b:b1", "b:b2"}, ids)
	shown := s.ok("ls", "bookings", "--state", "waiting", "--group", "b")
	require.Contains(t, shown, "b1")
	require.NotContains(t, shown, "a1")
	require.Contains(t, s.ok("queues"), "4 wait in groups")
	require.Contains(t, s.ok("get", "bookings", "a1"), "waiting")
	due := s.ok("ls", "bookings", "--group", "b")
	require.Contains(t, due, "b0")
	require.NotContains(t, due, "a0")
	s.ok("cancel", "bookings", "--all", "--state", "waiting", "--yes")
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.GroupWaiting)
	require.EqualValues(t, 2, stats.Due)
}
