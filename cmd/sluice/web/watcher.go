package web

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// searchEvery is how often Watch searches for queues that are new.
const searchEvery = time.Minute

// Page is the operator's page. Its methods are safe for concurrent use.
type Page struct{ page *page }

// ServeHTTP answers a request.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.page.ServeHTTP(w, r) }

// Watch looks at all queues every ten seconds, until ctx ends, so that charts have a history of an
// hour, and so that the page knows of the workers that have died and of the tasks they had, whether
// a viewer is there or not. It blocks; run it once for a Page, in a goroutine of its own. Without
// it the page knows what it has read for viewers.
//
// A look costs Redis a small script for each queue, one more for each that has workers and one for
// each that has leased tasks; once a minute the queues are searched for, by SCAN, for a tenth of
// the time at the most. What cannot be read is left out, and is looked at again with the next look.
// The first thousand queues are watched; they need 20 MB.
func (p *Page) Watch(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var names []string
	var searched time.Time
	for ctx.Err() == nil {
		if time.Since(searched) >= searchEvery {
			if f, err := p.page.watch.queues(ctx); err == nil {
				names, searched = f.names[:min(len(f.names), mostLooked)], time.Now()
			}
		}
		p.page.watch.sampleAll(ctx, names)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// sampleAll looks at queues, some at a time. Figures that a viewer has just read are not read
// again.
func (w *watch) sampleAll(ctx context.Context, names []string) {
	places := make(chan struct{}, lookers)
	var group sync.WaitGroup
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		places <- struct{}{}
		group.Go(func() { // it ends with its replies; Wait waits for it
			defer func() { <-places }()
			w.of(name).sample(ctx)
		})
	}
	group.Wait()
}

// sample reads a queue's figures, which notes them, and who works on it. An error is told to the
// next viewer, who reads them too.
func (s *series) sample(ctx context.Context) {
	stats, err := s.stats.get(ctx)
	if err != nil {
		return
	}
	if stats.Workers > 0 || s.crews.hasAny() {
		_, _ = s.workers.get(ctx)
	}
}
