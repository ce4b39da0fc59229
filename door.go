package sluice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxRepeats is how often an operation that may be repeated is sent again
	// after its reply was lost.
	maxRepeats = 3
	// patience is how long an operation is tried again while the server says
	// that it cannot serve it just now (loading, failing over, migrating).
	patience = 10 * time.Second

	// grace is how long a reply is still waited for when the context has ended
	// while it was under way: most come within it, and "somebody else holds it"
	// says more than "unknown".
	grace = 15 * time.Millisecond

	backoffMin = 8 * time.Millisecond
	backoffMax = 500 * time.Millisecond
)

// door is the one way to Redis. It sends each attempt once, since go-redis
// would otherwise run a script again whenever a reply is lost, and it returns
// when the context ends, since go-redis waits for the socket.
type door struct {
	rdb    redis.UniversalClient
	flight flight // attempts; those whose caller has left included

	// Commands go out from goroutines that stay for a moment to send others: the
	// stack of a fresh one would have to grow anew each time.
	errands chan errand
	hands   flight // those goroutines
	closed  chan struct{}
}

// errand is a command, or a pipeline of them, that its caller can leave.
type errand interface{ run(d *door) }

// idle is how long a goroutine of the door waits for another errand.
const idle = 200 * time.Millisecond

func newDoor(rdb redis.UniversalClient) *door {
	return &door{rdb: rdb, errands: make(chan errand), closed: make(chan struct{})}
}

// start has an errand run in a goroutine.
func (d *door) start(e errand) {
	select {
	case d.errands <- e: // somebody is idle
	default:
		d.hands.begin()
		go d.work(e)
	}
}

// work runs errands, this one first, until there are none for a while.
func (d *door) work(e errand) {
	defer d.hands.end()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		e.run(d)
		timer.Reset(idle)
		select {
		case e = <-d.errands:
		case <-timer.C:
			return
		case <-d.closed:
			return
		}
	}
}

// close waits for what is under way, and for the goroutines to end, or until ctx
// ends. Calls made later are carried out all the same.
func (d *door) close(ctx context.Context) {
	d.flight.wait(ctx)
	close(d.closed)
	d.hands.wait(ctx)
}

// call is what is to be sent, and how it may be handled. See script.call.
type call struct {
	script *script // nil for a plain command
	argv   []any   // as it is sent, a script by its digest

	// mode says what may be done when a reply is lost.
	mode mode
	// detached says that the call is sent even if its context has ended.
	detached bool
	// late, if set, is told when the call's effect may have come, or may still
	// come, after run returned without a reply.
	late interface{ cleanUp() }
}

type mode int

const (
	once   mode = iota // a lost reply is ErrUnknown
	repeat             // it is sent again; the script's header says why it may be
	read               // it is sent again, and changes nothing in any case
)

// answer is the reply to a call.
type answer struct {
	reply any
	// sent is the time just before the attempt that was answered went out.
	sent time.Time
	// unsure says that an earlier attempt of the call stayed without a reply:
	// it may have been carried out before the one that was answered, or may
	// yet be.
	unsure bool
}

// fate is how an attempt ended.
type fate int

const (
	done    fate = iota // carried out; here is the reply
	refused             // the server said no, before it changed anything
	busy                // likewise, but it may say yes in a moment
	unsent              // never left this process
	lost                // sent, no reply: carried out, or not, or not yet
	left                // lost, because the context ended while it was under way
)

// run carries out a call. It is the only retry loop of the library:
//
//	fate     once         repeat               read
//	done     the reply    the reply            the reply
//	refused  error        error*               error
//	busy     try again, for patience at most, then as refused
//	unsent   error        error*               error
//	lost     ErrUnknown   try again, then      try again, then
//	                      ErrUnknown           error
//	left     ErrUnknown   ErrUnknown           error
//
// *ErrUnknown instead, if an earlier attempt was lost.
func (d *door) run(ctx context.Context, c call) (answer, error) {
	var a answer
	for start, try := time.Now(), 0; ; try++ {
		if err := ctx.Err(); err != nil && (!c.detached || try > 0) {
			return a, d.fail(c, &a, err)
		}
		a.sent = time.Now()
		r := d.attempt(ctx, c)
		switch r.fate {
		case done:
			a.reply = r.reply
			return a, nil
		case left:
			if !a.unsure {
				c.late = nil // the attempt calls it itself, once it has ended
			}
			a.unsure = true
			return a, d.fail(c, &a, r.err)
		case lost:
			a.unsure = true
			if c.mode == once || try >= maxRepeats {
				return a, d.fail(c, &a, r.err)
			}
		case busy:
			if time.Since(start) > patience {
				return a, d.fail(c, &a, r.err)
			}
		case refused, unsent:
			return a, d.fail(c, &a, r.err)
		}
		pause(ctx, try)
	}
}

// fail is the error of a call that ends without a reply.
func (d *door) fail(c call, a *answer, err error) error {
	if !a.unsure || c.mode == read {
		return err
	}
	if c.late != nil {
		c.late.cleanUp()
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// result is how an attempt ended: its fate and, if it was carried out, the reply.
type result struct {
	reply any
	fate  fate
	err   error
}

// attempt is a call that is sent once.
type attempt struct {
	ctx     context.Context
	call    call
	command command
	// settled is set by whoever is first: the goroutine that has an answer to
	// give, or the caller that leaves. A late call for an answer that was taken
	// would release a lock that its caller believes to hold.
	settled  atomic.Bool
	answered chan struct{} // cap 1: there is a result for the caller
	result   result
}

// attempt sends a call once and waits for the reply or for the context to end,
// whichever comes first. In the latter case the command goes on in a goroutine
// that ends within the client's own timeouts.
func (d *door) attempt(ctx context.Context, c call) result {
	d.flight.begin()
	a := &attempt{ctx: ctx, call: c}
	if ctx.Done() == nil {
		defer d.flight.end()
		return d.send(a)
	}
	if c.detached {
		a.ctx = context.WithoutCancel(ctx)
	}
	a.answered = make(chan struct{}, 1)
	d.start(a)
	select {
	case <-a.answered:
		return a.result
	case <-ctx.Done():
	}
	if a.lastWord() || !a.settled.CompareAndSwap(false, true) {
		return a.result
	}
	return result{fate: left, err: ctx.Err()}
}

// run sends a, and deals with the answer if its caller has left.
func (a *attempt) run(d *door) {
	defer d.flight.end()
	a.result = d.send(a)
	if a.settled.CompareAndSwap(false, true) {
		a.answered <- struct{}{}
	} else if a.call.late != nil && (a.result.fate == done || a.result.fate == lost) {
		a.call.late.cleanUp()
	}
}

// lastWord waits for a reply that comes within the grace.
func (a *attempt) lastWord() bool {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-a.answered:
		return true
	case <-timer.C:
		return false
	}
}

// send sends a call, by digest and, if the server doesn't know that, in full.
func (d *door) send(a *attempt) result {
	a.command.Cmd = redis.NewCmd(a.ctx, a.call.argv...)
	err := process(a.ctx, d.rdb, &a.command)
	if isNoScript(err) && a.call.script != nil {
		a.command.written.Store(false)
		a.command.Cmd = redis.NewCmd(a.ctx, a.call.inFull()...)
		err = process(a.ctx, d.rdb, &a.command)
	}
	return d.heed(a.command.judge(err))
}

// heed has a Cluster's client ask again which server keeps what, when one did not
// answer. go-redis itself does when a server says that something has moved, which one
// that is dead never says, and else once a minute: for so long a replica that has
// taken over would not be found. It asks in the background, one question at a time.
// An autopipeline does not let us: behind one, it is up to a minute.
func (d *door) heed(r result) result {
	if r.fate != lost && r.fate != unsent {
		return r
	}
	if cluster, ok := d.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.Background())
	}
	return r
}

// process runs cmd on a client or a pipeline. The error is read from the
// command, which waits for it on a deferred autopipeline.
func process(ctx context.Context, rdb redis.UniversalClient, cmd *command) error {
	if err := rdb.Process(ctx, cmd); err != nil {
		return err
	}
	return cmd.Err()
}

// pipeline sends each of the calls once, all of them in one pipeline, and
// returns their results in order. It returns when ctx ends, as attempt does.
func (d *door) pipeline(ctx context.Context, calls []call) []result {
	p := &pipeline{context.WithoutCancel(ctx), calls, make(chan []result, 1)}
	d.flight.begin()
	d.start(p)
	select {
	case rs := <-p.answered:
		return rs
	case <-ctx.Done():
		rs := make([]result, len(calls))
		for i := range rs {
			rs[i] = result{fate: left, err: ctx.Err()}
		}
		return rs
	}
}

type pipeline struct {
	ctx      context.Context
	calls    []call
	answered chan []result // cap 1
}

func (p *pipeline) run(d *door) {
	defer d.flight.end()
	p.answered <- d.sendAll(p.ctx, p.calls)
}

// nodeOf is the server that keeps a key, as far as a Cluster's client knows, and nil
// with other clients. go-redis waits for all servers that a pipeline goes to, so what
// must not wait for one that hangs goes there in pipelines of its own. It never blocks.
//
// An autopipeline does not say which client it is of: there, one pipeline goes to all.
func (d *door) nodeOf(key any) any {
	cluster, ok := d.rdb.(interface {
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	})
	if !ok {
		return nil
	}
	name, _ := key.(string)
	node, err := cluster.MasterForKey(endedContext, name)
	if err != nil {
		return nil
	}
	return node
}

// endedContext keeps what is called with it from using the network.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (d *door) sendAll(ctx context.Context, calls []call) []result {
	results := make([]result, len(calls))
	send := func(which []int, inFull bool) (unknown []int) {
		pipe := d.rdb.Pipeline()
		cmds := make([]*command, len(which))
		for i, at := range which {
			argv := calls[at].argv
			if inFull {
				argv = calls[at].inFull()
			}
			cmds[i] = &command{Cmd: redis.NewCmd(ctx, argv...)}
			_ = pipe.Process(ctx, cmds[i]) // only queues it
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		for i, at := range which {
			err := cmds[i].Err()
			if isNoScript(err) && !inFull {
				unknown = append(unknown, at)
			}
			results[at] = d.heed(cmds[i].judge(err))
		}
		return unknown
	}
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	if unknown := send(all, false); len(unknown) > 0 {
		send(unknown, true)
	}
	return results
}

// command is a redis.Cmd that go-redis does not repeat, and that knows whether
// it may have been written to a connection.
type command struct {
	*redis.Cmd
	written atomic.Bool
}

// NoRetry tells go-redis to send it once. MOVED and ASK are followed all the
// same: they say that nothing was carried out.
func (c *command) NoRetry() bool { return true }

// Args is where go-redis fetches what it writes. Anybody else who asks makes us
// less sure than we could be, no more.
func (c *command) Args() []any {
	c.written.Store(true)
	return c.Cmd.Args()
}

// judge says what became of the command.
func (c *command) judge(err error) result {
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return result{c.Val(), done, nil}
	case !c.written.Load(), isDial(err):
		return result{nil, unsent, errServer(err)} // perhaps while the connection was set up
	}
	var server redis.Error
	switch {
	case !errors.As(err, &server):
		return result{nil, lost, errLost(err)}
	case isBusy(server):
		return result{nil, busy, errServer(err)}
	default:
		return result{nil, refused, errServer(err)}
	}
}

// isDial recognises that there was no connection to send on. A Cluster's client looks
// at what it is to write beforehand, to find out where to.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func isNoScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// isBusy recognises the errors that pass: nothing was carried out, and the
// server may serve the same command in a moment. Redis 6 wraps those that a
// script meets: "ERR Error running script (...): ...: -READONLY You can't ...".
func isBusy(err error) bool {
	text := err.Error()
	wrapped := strings.HasPrefix(text, "ERR Error running script")
	for _, code := range []string{"TRYAGAIN", "LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN"} {
		if strings.HasPrefix(text, code) || wrapped && strings.Contains(text, ": -"+code+" ") {
			return true
		}
	}
	return false
}

// flight counts what is under way. Unlike a sync.WaitGroup it may go up again
// while somebody waits for it to come down.
type flight struct {
	mu    sync.Mutex // guards what follows
	n     int
	quiet chan struct{} // closed when n comes down to 0; nil if nobody waits
}

func (f *flight) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
}

func (f *flight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n--
	if f.n == 0 && f.quiet != nil {
		close(f.quiet)
		f.quiet = nil
	}
}

// wait returns when nothing is under way, or ctx ends.
func (f *flight) wait(ctx context.Context) {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return
	}
	if f.quiet == nil {
		f.quiet = make(chan struct{})
	}
	quiet := f.quiet
	f.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}

// pause waits before the next try: exponential backoff with full jitter, or
// until ctx ends.
func pause(ctx context.Context, try int) {
	most := min(backoffMin<<min(try, 10), backoffMax)
	sleep(ctx, rand.N(most)+time.Millisecond)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
