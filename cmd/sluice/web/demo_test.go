package web

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// demo fills a server with queues as a shop may have them, and works on them for some time.
func demo(t *testing.T, rdb redis.UniversalClient, took time.Duration) {
	ctx := t.Context()
	queue := func(name string) *sluice.Queue { return newQueue(t, rdb, name) }
	batch := func(q *sluice.Queue, prefix string, n int, at func(i int) time.Duration, header map[string]string) {
		var tasks []sluice.Task
		for i := range n {
			payload := fmt.Sprintf(`{"order": %d, "total": "%d.90 EUR", "items": [%d, %d]}`, 41000+i, 20+i%80, 100+i%7, 200+i%11)
			tasks = append(tasks, sluice.Task{ID: fmt.Sprintf("%s-%06d", prefix, 41000+i), Payload: []byte(payload), Delay: at(i), Header: header})
		}
		_, err := q.EnqueueBatch(ctx, tasks)
		require.NoError(t, err)
	}
	now := func(int) time.Duration { return 0 }
	unpaid, mail, hooks, thumbs, index := queue("orders:cancel-unpaid"), queue("mail"), queue("webhooks"), queue("thumbnails"), queue("search-index")
	batch(unpaid, "order", 2310, func(i int) time.Duration { return time.Duration(i*390)*time.Millisecond + time.Minute }, nil)
	batch(queue("invoices:pdf"), "invoice", 64, func(i int) time.Duration { return time.Duration(i) * 3 * time.Second }, nil)
	batch(queue("reports:nightly"), "report", 12, func(i int) time.Duration { return 9*time.Hour + time.Duration(i)*time.Minute }, nil)
	batch(mail, "mail", 4200, now, nil)
	trace := map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "northwind", "source": "checkout@2.14.3"}
	batch(hooks, "hook", 900, now, trace)
	batch(thumbs, "photo", 300, now, nil)
	bury(t, hooks)
	locks(t, rdb)
	end, stop := context.WithTimeout(ctx, took)
	defer stop()
	started := time.Now().Add(-7 * time.Hour).UnixMilli()
	for n := 0; end.Err() == nil; n++ {
		for i, name := range []string{"mail", "mail", "mail", "thumbnails", "webhooks", "webhooks", "search-index", "search-index", "orders:cancel-unpaid", "reports:nightly"} {
			label, _, _ := strings.Cut(name, ":")
			running := 8 // they have no room, as the page says of whom none waits for tasks
			if name == "reports:nightly" {
				running = 0
			}
			says(t, rdb, name, map[string]any{
				"id": fmt.Sprint("W", i), "label": fmt.Sprintf("%s-%d", label, i), "host": fmt.Sprintf("%s-5c77-%d", label, i), "pid": 1,
				"concurrency": 8, "running": running, "started": started,
			})
		}
		work(t, mail, 30+rand.IntN(22), true)
		work(t, thumbs, 8+rand.IntN(10), true)
		work(t, hooks, 3, false)
		batch(mail, fmt.Sprintf("mail-%d", n), 20+rand.IntN(18), now, nil)
		batch(thumbs, fmt.Sprintf("photo-%d", n), rand.IntN(20), now, nil)
		batch(index, fmt.Sprintf("doc-%d", n), rand.IntN(9), now, nil)
		work(t, index, 6, true)
		time.Sleep(500 * time.Millisecond) // the demo shall take its time
	}
}

// work claims tasks, and finishes them or keeps them.
func work(t *testing.T, q *sluice.Queue, n int, finish bool) {
	entries, err := q.Claim(t.Context(), n, time.Minute)
	require.NoError(t, err)
	if finish && len(entries) > 1 {
		require.NoError(t, q.Dequeue(t.Context(), entries[:len(entries)-1]...))
	}
}

// bury makes dead letters.
func bury(t *testing.T, q *sluice.Queue) {
	entries, err := q.Claim(t.Context(), 42, time.Minute)
	require.NoError(t, err)
	for i, e := range entries {
		reason := "POST https://partner.example/hook: 503 Service Unavailable (upstream connect error)"
		switch {
		case i%9 == 4:
			reason = "payload: json: cannot unmarshal string into Go struct field Order.total of type int64"
		case i%7 == 3:
			reason = "attempts used up"
		}
		require.NoError(t, q.Bury(t.Context(), reason, e))
	}
}

// locks takes some locks.
func locks(t *testing.T, rdb redis.UniversalClient) {
	for name, owner := range map[string]string{
		"stock:sku-11873": "checkout-7d9f4/pid 1", "stock:sku-20440": "checkout-7d9f4/pid 1", "nightly report": "cron-2/pid 3127", "cache:front-page": "",
		"floor:building-9": "building-api-5c77/pid 1", "migrate:2026-11-22": "deploy-bot",
	} {
		options := []sluice.LockOption{sluice.WithTTL(time.Duration(40+len(name)*37) * time.Second)}
		if owner != "" {
			options = append(options, sluice.WithOwner(owner))
		}
		l, err := sluice.NewLocker(rdb, options...)
		require.NoError(t, err)
		_, err = l.TryLock(t.Context(), name)
		require.True(t, err == nil || errors.Is(err, sluice.ErrLocked), err)
	}
}
