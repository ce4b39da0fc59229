package web

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestBrowser_Incident is the incident of docs/page.md, found and mended from the page alone: tasks
// pile up behind a partner that refuses, one task is poison, and a process has died with a lock
// that every task needs.
func TestBrowser_Incident(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	n := 600
	if *pictures != "" {
		n = 100_000
	}
	w := startIncident(t, rdb, n)
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 1180, 720)
	b.scheme("light")
	picture := func(name string, height int64) {
		if *pictures == "" {
			return
		}
		b.resize(1180, height)
		content, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(*pictures, name+".png"), smaller(t, content), 0o644))
	}
	notice := func(text string) {
		b.eventually(fmt.Sprintf(`document.readyState === 'complete' && document.querySelector('.notice')?.textContent.includes(%q)`, text))
	}

	// Found: the queue grows, and letters come.
	b.open(s.url + "/")
	b.eventually(`Number(document.querySelector('[data-key=webhooks] .dead')?.textContent ?? 0) >= 8`)
	b.eventually(`document.querySelector('[data-key=webhooks] .chart .line').getAttribute('d').split('L').length > 3`)
	picture("incident-1-found", 300)
	// Paused.
	b.do(chromedp.Click(`tr[data-key=webhooks] a`), chromedp.WaitVisible(`button[value=pause]`), chromedp.Click(`button[value=pause]`))
	notice("is paused")
	b.eventually(`document.querySelector('.tab.leased .tab-count').textContent === '0'`)
	// Looked into: two reasons.
	b.do(chromedp.Click(`.tab.dead`), chromedp.WaitVisible(`#reason`))
	picture("incident-2-paused", 620)
	b.do(chromedp.SendKeys(`#reason`, "parse"+kb.Enter))
	b.eventually(`document.querySelectorAll('#selection tbody tr').length === 1`) // the page before may have that task, too
	b.do(chromedp.WaitVisible(`input[value="hook-000003"]`))
	// The poison is dropped.
	b.do(chromedp.Click(`input[value="hook-000003"]`), chromedp.Click(`button[value=drop]`), chromedp.WaitReady(`input[name=sure]`))
	b.do(chromedp.Click(`button[value=drop]`))
	notice("1 task dropped for good")
	// The dead process's lock is found by the reason of the others, and forced open.
	b.open(s.url + "/locks")
	b.eventually(`document.querySelector('table.locks').textContent.includes('sync-3/pid 811')`)
	picture("incident-3-lock", 280)
	b.open(s.url + "/locks/" + segment("partner session"))
	b.do(chromedp.Click(`summary`), chromedp.SendKeys(`#force-name`, "partner session"+kb.Enter))
	notice("forced open")
	w.partnerIsUp.Store(true)
	// Mended and drained.
	b.open(s.url + "/queues/webhooks?state=dead")
	b.do(chromedp.Click(`.deeds form button[value=revive]`), chromedp.WaitReady(`input[name=sure]`))
	b.do(chromedp.Click(`button[value=revive]`))
	notice("revived")
	b.do(chromedp.Click(`button[value=resume]`))
	notice("goes on")
	b.open(s.url + "/queues/webhooks")
	if *pictures != "" {
		b.eventually(`document.querySelector('.tab.due .tab-note').textContent.includes('gone in')`)
		picture("incident-4-draining", 520)
		return // a hundred thousand take their time
	}
	b.eventually(`['due', 'scheduled', 'leased', 'dead'].every((s) => document.querySelector('.tab.' + s + ' .tab-count').textContent === '0')`)
	require.EqualValues(t, n-1, w.done.Load())
	b.requireQuiet(s.url)
}

// incident is a service whose partner is down, and whose other process has died.
type incident struct {
	partnerIsUp atomic.Bool
	done        atomic.Int64
}

// startIncident enqueues n tasks and starts a worker that lasts until the test's end.
func startIncident(t *testing.T, rdb redis.UniversalClient, n int) *incident {
	w := new(incident)
	dead, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Hour), sluice.WithOwner("sync-3/pid 811"))
	require.NoError(t, err)
	_, err = dead.TryLock(t.Context(), "partner session")
	require.NoError(t, err)
	locker, err := sluice.NewLocker(rdb, sluice.WithOwner("sync-4/pid 77"))
	require.NoError(t, err)
	queue, err := sluice.NewQueue(rdb, "webhooks", sluice.WithMaxAttempts(1))
	require.NoError(t, err)
	var tasks []sluice.Task
	for i := range n {
		tasks = append(tasks, sluice.Task{ID: fmt.Sprintf("hook-%06d", i), Payload: []byte(`{"order": 7}`), Header: map[string]string{"tenant": "northwind"}})
	}
	_, err = queue.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	worker := &sluice.Worker{Queue: queue, Concurrency: 2, Handler: func(ctx context.Context, e sluice.Entry) error {
		if e.ID == "hook-000003" {
			return sluice.Permanent(errors.New("cannot parse the order's total"))
		}
		if !w.partnerIsUp.Load() {
			time.Sleep(200 * time.Millisecond) // the partner takes its time to refuse
			_, err := locker.TryLock(ctx, "partner session")
			return err
		}
		w.done.Add(1)
		return nil
	}}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return w
}
