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
	answers, err := workInProcesses(ctx, slices.Repeat([]assignment{e}, c.processes), t.meter.start)
	if err != nil {
		return result{}, err
	}
	return sumUp(answers, t.length), g.check()
}

// workInProcesses carries out each assignment in a child process, all at the same time. It
// calls ready when the children have warmed up.
func workInProcesses(ctx context.Context, work []assignment, ready func(context.Context) error) (answers []answer, err error) {
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
	for _, e := range work {
		child, err := spawn(ctx, e)
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	if err := ready(ctx); err != nil {
		return nil, err
	}
	if answers, err = workTogether(children); err != nil {
		cancel()
	}
	return answers, err
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
