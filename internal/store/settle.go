package store

import (
	"strconv"
	"time"
)

// Item is a claimed task, as a script is told of it.
type Item struct {
	ID          string
	Receipt     string      // its score, as the server wrote it or as ScoreText does
	Disposition Disposition // except where its lease is extended
}

// Disposition is what is to become of a claimed task.
type Disposition struct {
	Action Action
	Delay  time.Duration // of Retry and Again
	Reason string        // of Bury, Discard and Retry, "" for none; for the log too
	Result string        // of Finish, "" for none
	Next   *Next         // takes the task's place, whatever the action is; nil for none
}

// Next is what a task with that ID is from the end of this one on: the next occurrence of a
// periodic task.
type Next struct {
	At      time.Time // when it is due
	Payload string    // as it is stored, not empty
}

// Action is the kind of a disposition.
type Action int

// The actions.
const (
	Finish  Action = iota // remove it
	Retry                 // give it back, due after a delay; the attempt counts
	Release               // give it back, due now; the attempt does not count
	Again                 // give it back, due after a delay; the attempt does not count
	Bury                  // put it among the dead letters
	Discard               // remove it, and remember nothing of it
	Expire                // likewise: no handler had it
)

// Settler is what carries a disposition out: a script, and what that is told of all tasks. Those of
// many tasks that have the same one are sent together.
type Settler int

// The settlers.
const (
	ByExchange Settler = iota
	ByGiveBack
	ByBury
	ByDiscard // exchange.lua too, without the retention
	Settlers  // how many there are
)

// Settler returns what carries it out.
func (d *Disposition) Settler() Settler {
	switch {
	case d.Next != nil:
		return ByGiveBack
	case d.Action == Finish:
		return ByExchange
	case d.Action == Bury:
		return ByBury
	case d.Action == Discard || d.Action == Expire:
		return ByDiscard
	}
	return ByGiveBack
}

// Size returns how many bytes of payload or result are sent with the disposition.
func (d *Disposition) Size() int {
	if d.Next == nil {
		return len(d.Result)
	}
	return len(d.Next.Payload)
}

// appendItem appends what giveback.lua and bury.lua take for a task.
func appendItem(args []any, item *Item) []any {
	d := &item.Disposition
	args = append(args, item.ID, item.Receipt)
	switch {
	case d.Next != nil:
		return append(args, DueAt(d.Next.At).Seconds(), countsAs[d.Action], d.Next.Payload, "")
	case d.Action == Bury:
		return append(args, d.Reason)
	case d.Action == Retry:
		return append(args, Duration(d.Delay), countsAs[Retry], "", d.Reason)
	}
	return append(args, Duration(d.Delay), countsAs[Again], "", "") // or Release, without a delay
}

// countsAs is what a task that is given back counts as. One that is not counted has an attempt
// less.
var countsAs = [...]string{Finish: "done", Retry: "retried", Release: "", Again: "", Bury: "retried", Discard: "done", Expire: "done"}

// claimant says who claims tasks, and for how long, as exchange.lua is told.
func claimant(lease time.Duration, worker string) string {
	return strconv.FormatFloat(lease.Seconds(), 'f', -1, 64) + "/" + worker
}

// noReceipt ends the tasks that exchange.lua is to finish.
const noReceipt = ""

// appendRetention appends for how long exchange.lua is to remember tasks that are to be finished,
// and the results that they have.
func appendRetention(args []any, items []Item, d time.Duration) []any {
	args = append(args, noReceipt, Duration(d))
	for i := range items {
		if result := items[i].Disposition.Result; result != "" {
			args = append(args, i+1, result)
		}
	}
	return args
}

// appendByReceipt appends what exchange.lua and extend_leases.lua are given of claimed tasks: of
// those in a row with the same receipt, that, their number and their IDs.
func appendByReceipt(args []any, items []Item) []any {
	for len(items) > 0 {
		receipt, size := items[0].Receipt, 1
		for size < len(items) && items[size].Receipt == receipt {
			size++
		}
		args = append(args, receipt, size)
		for _, item := range items[:size] {
			args = append(args, item.ID)
		}
		items = items[size:]
	}
	return args
}
