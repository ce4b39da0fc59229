package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	limitedHandler = 5 * time.Millisecond
	limitedPlaces  = 2 // of each worker: one alone would have all of ten
	beyondIdling   = "beyond idling"
	handedOutRate  = "tasks/s"
)

// herdLimited measures what many workers do about each task of a backlog of which limits let few go
// at a time.
func herdLimited(workers int, limits sluice.Limits) scenario {
	what, atMost := "running", float64(limits.Running)/limitedHandler.Seconds()
	text := fmt.Sprintf("%d at a time", limits.Running)
	if limits.Rate > 0 {
		what, atMost = "rate", float64(limits.Rate)
		text = fmt.Sprintf("%d a second, %d at once", limits.Rate, limits.Burst)
	}
	return scenario{
		name: fmt.Sprintf("herd-%d-limited-%s", workers, what),
		about: fmt.Sprintf("%d workers of %d handlers, each with a client of its own, on a backlog with limits: %s, handlers of %v; all scripts per task, and"+
			" without those of as many workers on an empty queue", workers, limitedPlaces, text, limitedHandler),
		measure: scriptsPerTask,
		entries: enterQueues(sluiceName),
		length:  6 * time.Second,
		columns: []column{{beyondIdling, median, threeDigits}, {idleScripts, median, threeDigits}, {handedOutRate, median, whole}},
		turn: func(ctx context.Context, t turn) (result, error) {
			return herdLimitedTurn(ctx, t, workers, limits, int(atMost*(max(t.length, minIdle)+t.settling()).Seconds())*2)
		},
	}
}

func herdLimitedTurn(ctx context.Context, t turn, workers int, limits sluice.Limits, backlog int) (r result, err error) {
	idling := max(t.length, herdIdle)
	if t.quick {
		workers, idling = max(workers/10, 1), minIdle
	}
	q := t.queue.(taskQueue)
	if err := q.SetLimits(ctx, limits); err != nil {
		return r, err
	}
	var tasks atomic.Int64
	l := newLedger(backlog)
	stop := startHerd(ctx, t, workers, limitedPlaces, func(id int) {
		tasks.Add(1)
		l.enter(id)
		time.Sleep(limitedHandler)
	})
	defer func() {
		err = errors.Join(err, q.Pause(ctx, time.Minute))
		sleep(ctx, 100*time.Millisecond) // the last handlers have returned: the first worker that ends removes all tasks
		err = errors.Join(err, stop(), l.twice())
	}()
	sleep(ctx, t.settling()) // the herd has subscribed
	idle, _, err := t.meter.during(ctx, idling)
	if err != nil {
		return r, err
	}
	if err := q.Fill(ctx, backlog, nil, atOnce); err != nil {
		return r, err
	}
	sleep(ctx, t.settling()) // what goes at once has gone
	before := tasks.Load()
	scripts, _, err := t.meter.during(ctx, max(t.length, minIdle))
	if err != nil {
		return r, err
	}
	perSecond := float64(tasks.Load()-before) / max(t.length, minIdle).Seconds()
	if perSecond == 0 || tasks.Load() >= int64(backlog) {
		return r, fmt.Errorf("%d of %d tasks were handed out", tasks.Load(), backlog)
	}
	r.value = scripts / perSecond
	r.extra = map[string]float64{beyondIdling: (scripts - idle) / perSecond, idleScripts: idle, handedOutRate: perSecond}
	return r, nil
}
