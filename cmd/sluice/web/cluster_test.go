package web

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestCluster_QueuesAndLocksOfAllPrimaries are on the page. Several queues of one name are queues
// like any others.
func TestCluster_QueuesAndLocksOfAllPrimaries(t *testing.T) {
	rdb := redistest.StartCluster(t).Client(t)
	ctx := t.Context()
	q := newQueue(t, rdb, "invoices", sluice.WithRetention(time.Hour))
	fill(t, q, 45, 0, "done")
	finishAll(t, q, 45, "result")
	fill(t, q, 45, 0, "dead")
	kill(t, q, 45, "broken")
	fill(t, q, 45, 0, "leased")
	leased, err := q.Claim(ctx, 45, time.Minute)
	require.NoError(t, err)
	require.Len(t, leased, 45)
	fill(t, q, 45, 0, "due")
	fill(t, q, 43, time.Hour, "scheduled")
	fillGroups(t, q, 45)
	mails, err := sluice.NewQueues(rdb, "mails", 20)
	require.NoError(t, err)
	for _, q := range mails {
		fill(t, q, 1, 0, "mail")
	}
	locker, err := sluice.NewLocker(rdb, sluice.WithOwner("till-7"))
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	for i := range 20 {
		_, err := locker.Lock(ctx, fmt.Sprint("item-", i))
		require.NoError(t, err)
	}

	s := newSite(t, rdb, Options{Write: true})
	queues := s.get("/")
	queues.has(t, "21 queues · 65 due · 45 scheduled · 45 waiting in groups · 45 leased · 45 dead · 45 done and remembered")
	s.requireEachOnce("invoices", 45)
	locks := s.get("/locks")
	for i := range 20 {
		queues.has(t, fmt.Sprint("mails:", i, "</bdi>"))
		locks.has(t, fmt.Sprint("item-", i, "</bdi>"))
	}
	locks.has(t, "till-7")

	s.post("/queues/invoices", "do", "pause", "for", "0s").has(t, "The queue is paused")
	entries, err := q.Claim(ctx, 100, time.Minute)
	require.NoError(t, err)
	require.Empty(t, entries, "it is paused")
	s.post("/queues/invoices", "do", "resume").has(t, "The queue goes on")
	s.post("/queues/invoices", "do", "revive", "state", "dead", "sure", "1").has(t, "45 dead letters revived")
	s.post("/queues/invoices", "do", "purge", "name", "invoices").has(t, "The queue is purged")
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, stats.Due+stats.Scheduled+stats.Leased+stats.Dead+stats.Done)
}
