package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

const (
	leastShare    = "least share"
	withoutATurn  = "without a turn"
	timeToBeReady = 50 * time.Millisecond
)

// procs measures one name that several processes want.
func procs() scenario {
	return scenario{
		name:     "procs",
		headline: "4 processes of 16 goroutines want one lock: how often it changes hands in a second",
		about:    "4 processes of 16 goroutines on one name; the least share is a process's, of a fourth of all sections",
		measure:  perSecond,
		entries:  peers(),
		length:   4 * time.Second,
		retry:    retryForThroughput,
		columns: []column{
			{leastShare, slices.Min[[]float64], percent},
			{withoutATurn, slices.Max[[]float64], whole},
			commandsColumn,
		},
		turn: crowds{processes: 4, size: 16}.turn,
	}
}

// crowds are so many processes of so many goroutines each.
type crowds struct {
	processes, size int
	unguarded       bool // their sections may overlap
}

func (c crowds) turn(ctx context.Context, t turn) (r result, err error) {
	g, file, remove, err := newSharedGuard()
	if err != nil {
		return result{}, err
	}
	defer remove()
	e := assignment{
		Setup: t.setup, Entrant: t.entrant.name, Lock: uniqueName("procs"),
		Guard: file, Unguarded: c.unguarded, Size: c.size, Length: t.length,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var children []*child
	defer func() {
		for _, c := range children { // all at once: each takes a moment
			_ = c.Stdin.Close()
		}
		for _, c := range children {
			err = errors.Join(err, c.Close())
		}
	}()
	for range c.processes {
		child, err := spawn(ctx, e)
		if err != nil {
			return result{}, err
		}
		children = append(children, child)
	}
	if err := t.meter.start(ctx); err != nil { // the children have warmed up
		return result{}, err
	}
	answers, err := workTogether(children)
	if err != nil {
		cancel()
		return result{}, err
	}
	return sumUp(answers, t.length), g.check()
}

// workTogether makes all children begin at the same moment, and returns their answers.
func workTogether(children []*child) ([]answer, error) {
	start := time.Now().Add(timeToBeReady).UnixNano()
	answers := make([]answer, len(children))
	var group errgroup.Group
	for i, c := range children {
		group.Go(func() (err error) {
			if err = c.order(order{start}); err == nil {
				answers[i], err = c.answer()
			}
			return err
		})
	}
	return answers, group.Wait()
}

// sumUp adds up the tallies of all children.
func sumUp(answers []answer, length time.Duration) result {
	r := result{waits: newWaits(), extra: map[string]float64{withoutATurn: 0}}
	var shares []int64
	var total int64
	for _, a := range answers {
		n := a.Tally.sections()
		shares = append(shares, n)
		total += n
		for _, turns := range a.Tally.Turns {
			if turns == 0 {
				r.extra[withoutATurn]++
			}
		}
		r.failures.merge(a.Tally.Failures)
		r.waits.Merge(hdrhistogram.Import(a.Waits))
	}
	r.value = float64(total) / length.Seconds()
	r.ops = float64(total)
	if total > 0 {
		r.extra[leastShare] = float64(slices.Min(shares)) * float64(len(shares)) / float64(total)
	}
	return r
}

// workAsChild is workTogether's part in a child.
func workAsChild(ctx context.Context, e assignment, c contender, g *guard, o order) answer {
	if e.Unguarded {
		g = nil
	}
	work := team{
		contender: c, size: e.Size, length: e.Length,
		guard: func(int) *guard { return g },
		start: time.Unix(0, o.Start),
		name:  func(int) string { return e.Lock },
	}.work(ctx)
	return answer{Tally: work, Waits: work.waits.Export()}
}
