package taskloop

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/lease"

	"github.com/sluice-go/sluice/internal/store"
)

// delivery is a claimed task on its way through the loop. It belongs to the loop's
// goroutine, except the disposition, which its runner writes before it passes the
// delivery to the completions.
type delivery struct {
	task    store.Task
	receipt string // as the server wrote it

	until     time.Time // the task is ours until then, by our clock
	renewAt   time.Time // when the lease is to be extended
	renewFrom time.Time // from when it may be, along with another one's
	extending bool      // that waits to be sent, or is under way

	began       time.Time       // when a runner was found
	ctx         context.Context // the handler's
	cancel      context.CancelCauseFunc
	called      time.Time   // when the handler was; the runner's until the hold has a time at which it is due
	hold        *lease.Hold // what the handler's context knows of the lease; nil before there is one
	disposition store.Disposition
	took        time.Duration // for how long it kept its runner, if there are several queues; the runner's until it is delivered
	charged     time.Duration // what its queue was charged with for it

	state    state
	reported reportState
	ending   Ending    // once the state is settled or lost
	observed *observed // the runner's until the handler has returned, except ctx, as called; nil if no Observer waits to be told
	index    int       // in loop.handling
	stuck    bool      // its handler is; see checkStuck
	replaced bool      // another one has its place

	queue *queue

	announced time.Time // when a message said that the task was cancelled; zero if none did
}

// observed is what an Observer is to be told when it is decided what becomes of a task.
type observed struct {
	ctx  context.Context
	took time.Duration
	err  error
}

// toReport returns what a Source needs to know to report deliveries.
func toReport(deliveries []*delivery) []store.Item {
	items := make([]store.Item, len(deliveries))
	for i, d := range deliveries {
		items[i] = store.Item{ID: d.task.ID, Receipt: d.receipt, Disposition: d.disposition}
	}
	return items
}

// state is where a delivery is on its way.
type state int

const (
	handling  state = iota // a runner has it, or will have it
	pending                // the disposition is to be sent
	reporting              // an exchange with it is under way
	settled                // the disposition was accepted
	lost                   // the lease or the task is gone: nothing more is sent; the handler may still run
	states
)

// event is what happens to a delivery.
type event int

const (
	handlerReturned  event = iota // or it was taken back before it began
	exchangeSent                  // with its disposition
	exchangeFailed                // its disposition has to be sent again
	dispositionTaken              // Redis has accepted it
	leaseLost                     // or may be, for all we know; or the task was cancelled
	events
)

// transitions is the life of a delivery. An event that is not possible in a state changes
// nothing: that is so for most of what comes after the end, since answers may be late.
//
// A disposition may be accepted while it is pending: by a copy in an exchange that had no
// answer in time and was given up. An extension under way changes no state: the receipt stays
// the same, so that a disposition need not wait for it, nor it for a disposition.
var transitions = [events][states]state{
	//                 handling  pending    reporting  settled  lost
	handlerReturned:  {pending, pending, reporting, settled, lost},
	exchangeSent:     {handling, reporting, reporting, settled, lost},
	exchangeFailed:   {handling, pending, pending, settled, lost},
	dispositionTaken: {handling, settled, settled, settled, lost},
	leaseLost:        {lost, lost, lost, settled, lost},
}

// on moves the delivery on, and reports whether that has changed its state.
func (d *delivery) on(e event) bool {
	before := d.state
	d.state = transitions[e][before]
	return d.state != before
}

// reportState is what is known of a disposition that was sent.
type reportState int

const (
	never     reportState = iota // it was not sent yet
	sentOnce                     // it was sent; if it is sent again, Redis refused it without carrying it out
	ambiguous                    // it was sent and had no reply: Redis may have accepted it
)

// leased notes a lease that the server has given by a command sent then.
func (d *delivery) leased(sent time.Time, ttl time.Duration) {
	d.until = lease.SafeUntil(sent, ttl)
	d.renewAt = sent.Add(lease.RenewAfter(ttl))
	d.renewFrom = d.renewAt.Add(-lease.Leeway(ttl))
	if d.hold != nil {
		d.hold.Last(d.until)
	}
}

// renewNow has the lease extended at once.
func (d *delivery) renewNow() {
	d.renewAt = time.Now()
	d.renewFrom = d.renewAt
}

// retryExtension dates the next try after an extension that failed.
func (d *delivery) retryExtension(now time.Time, ttl time.Duration) {
	d.renewAt = now.Add(lease.RetryAfter(ttl))
	d.renewFrom = d.renewAt
}

// bag is a set of deliveries that each know their place in it.
type bag []*delivery

func (b *bag) add(d *delivery) {
	d.index = len(*b)
	*b = append(*b, d)
}

func (b *bag) remove(d *delivery) {
	all := *b
	last := len(all) - 1
	all[d.index] = all[last]
	all[d.index].index = d.index
	all[last] = nil
	*b = all[:last]
}
