package distributed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// There are names for which many callers wait with nothing to do, and names that are held
// for long.
const hotNames, slowNames = 2, 2

// contender is a process of TestExclusion_BetweenProcesses. It takes locks in all ways, and
// records what it held.
type contender struct {
	locker  *sluice.Locker
	process uint32
	handles atomic.Uint64
}

var _ = systest.Role("contender", contend)

// contend is the role "contender". Its settings are "ADDR PROCESS".
func contend(settings string) {
	var addr string
	c := &contender{}
	if _, err := fmt.Sscan(settings, &addr, &c.process); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialLaggard})
	var err error
	if c.locker, err = sluice.NewLocker(rdb); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range 22 {
		all.Go(func() {
			for ctx.Err() == nil {
				if i < 16 {
					c.contend(ctx, uint8(rand.IntN(hotNames)), 3)
				} else {
					c.contend(ctx, uint8(hotNames+rand.IntN(slowNames)), 400)
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	if err := c.locker.Close(); err != nil && !errors.Is(err, sluice.ErrUnknown) {
		panic(err)
	}
}

// laggard is a connection on which some requests and replies are late, and some
// replies are lost.
type laggard struct {
	net.Conn
	lose, late atomic.Bool // what becomes of the next reply
}

func dialLaggard(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &laggard{Conn: conn}, nil
}

func (c *laggard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\r\nevalsha\r\n")) || bytes.Contains(p, []byte("\r\nset\r\n")) {
		switch n := rand.IntN(4000); {
		case n < 1:
			c.lose.Store(true)
		case n < 30:
			c.late.Store(true)
		case n < 60:
			time.Sleep(rand.N(30 * time.Millisecond)) // the network
		}
	}
	return c.Conn.Write(p)
}

func (c *laggard) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.lose.Load() {
		_ = c.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	if c.late.Swap(false) {
		time.Sleep(rand.N(30 * time.Millisecond)) // the network
	}
	return n, err
}

// contend takes a lock once; slow is in how many of a thousand cases it then holds
// it for long.
func (c *contender) contend(ctx context.Context, name uint8, slow int) {
	rec := record{Name: name, Process: c.process, Handle: c.handles.Add(1)}
	if wait := rand.IntN(4); wait == 0 {
		bounded, cancel := context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
		ctx = bounded
	}
	ttl := 30 * time.Millisecond // a lock is handed over among about equal TTLs
	if rand.IntN(20) == 0 || name >= hotNames && rand.IntN(2) == 0 {
		ttl = 5*time.Millisecond + rand.N(40*time.Millisecond)
	}
	options := []sluice.LockOption{sluice.WithTTL(ttl)}
	if name%2 == 0 || rand.IntN(100) == 0 {
		options = append(options, sluice.WithFencing())
	}
	long := rand.IntN(1000) < slow
	way := rand.IntN(10)
	if way == 0 {
		c.do(ctx, rec, long, options)
		return
	}
	take, work := c.locker.Lock, c.brief
	if way == 1 {
		take = c.locker.TryLock
	}
	if long {
		switch rand.IntN(3) {
		case 0:
			work = c.extend
		case 1:
			work, options = c.renewed, append(options, sluice.WithAutoRenew())
		case 2:
			work = c.overstay
		}
	}
	k, err := take(ctx, lockName(name), options...)
	if err != nil {
		c.failed(ctx, rec, err)
		return
	}
	rec.From = monotonic()
	rec.Until = rec.From
	rec.Token, rec.Fence = hash(k.Token()), k.Fence()
	if !sample(k, &rec) {
		rec.write(expired)
	} else {
		work(ctx, k, &rec, ttl)
	}
	c.dead(k, rec)
}

func lockName(name uint8) string { return fmt.Sprintf("contended %d", name) }

// sample says whether the lock is held, and if so, that it was until now.
func sample(k *sluice.Lock, rec *record) bool {
	now := monotonic()
	if !k.Valid() {
		return false
	}
	rec.Until = now
	return true
}

// brief holds a lock for hardly any time.
func (c *contender) brief(ctx context.Context, k *sluice.Lock, rec *record, _ time.Duration) {
	if rand.IntN(20) == 0 {
		time.Sleep(rand.N(300 * time.Microsecond)) // work
		sample(k, rec)
	}
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// extend holds a lock for longer than its TTL by extending it.
func (c *contender) extend(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	for range 4 + rand.IntN(4) {
		time.Sleep(ttl / 4) // work
		if !sample(k, rec) {
			break
		}
		rec.write(holding)
		if k.Extend(context.WithoutCancel(ctx), ttl) == nil {
			rec.Renewals++
		}
	}
	sample(k, rec)
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// renewed holds a lock for longer than its TTL by having it renewed.
func (c *contender) renewed(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	until, deadline := rec.From+2*ttl, k.Deadline()
	for rec.Until < until {
		time.Sleep(2 * time.Millisecond) // work
		if !sample(k, rec) {
			rec.write(expired)
			break
		}
		rec.write(holding)
		if now := k.Deadline(); now.After(deadline) {
			rec.Renewals++
			deadline = now
		}
	}
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// overstay holds a lock beyond its deadline, and does too late what a holder does.
func (c *contender) overstay(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	ended := k.Context()
	last := rand.IntN(2) == 0 // an extension that comes too late, or just in time
	for i := 0; sample(k, rec); i++ {
		if i%16 == 0 {
			rec.write(holding)
		}
		if last && time.Until(k.Deadline()) < 2*time.Millisecond {
			last = false
			go func() { _ = k.Extend(context.Background(), ttl) }()
		}
		time.Sleep(rand.N(300 * time.Microsecond)) // so that it is known to the end
	}
	rec.write(held)
	rec.write(expired)
	for range rand.IntN(8) {
		time.Sleep(rand.N(10 * time.Millisecond)) // it has not noticed yet
		c.dead(k, *rec)
	}
	select {
	case <-ended.Done():
	case <-time.After(10 * time.Second):
		panic("the context of a lost lock has not ended")
	}
	switch rand.IntN(4) {
	case 0: // forgotten
	case 1:
		if err := k.Extend(context.WithoutCancel(ctx), ttl); !errors.Is(err, sluice.ErrNotHeld) {
			panic(fmt.Sprint("extended beyond its deadline: ", err))
		}
	default:
		c.unlock(ctx, k, rec)
	}
}

// do takes a lock with Do. It was held to the end if Do says so.
func (c *contender) do(ctx context.Context, rec record, long bool, options []sluice.LockOption) {
	err := c.locker.Do(ctx, lockName(rec.Name), func(ctx context.Context) error {
		rec.From = monotonic()
		if long {
			time.Sleep(rand.N(50 * time.Millisecond)) // work
		}
		rec.Until = monotonic()
		return nil
	}, options...)
	switch {
	case err == nil:
		rec.write(held)
	case rec.From != 0 && errors.Is(err, sluice.ErrLost):
		rec.write(lost)
	default:
		c.failed(ctx, rec, err)
	}
}

// failed records why a lock was not taken.
func (c *contender) failed(ctx context.Context, rec record, err error) {
	switch {
	case errors.Is(err, sluice.ErrUnknown), errors.Is(err, sluice.ErrLost):
		rec.write(lost)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		rec.write(ctxEnded)
	case errors.Is(err, sluice.ErrLocked):
		rec.write(busy)
	default:
		panic(err)
	}
}

func (c *contender) unlock(ctx context.Context, k *sluice.Lock, rec *record) {
	err := k.Unlock(ctx)
	if err != nil && !errors.Is(err, sluice.ErrNotHeld) && !errors.Is(err, sluice.ErrUnknown) {
		panic(err)
	}
	c.dead(k, *rec)
}

// dead checks that a lock that was seen not to be held, or released, is no more.
func (c *contender) dead(k *sluice.Lock, rec record) {
	if k.Valid() {
		rec.write(revived)
	}
}

// write tells the parent, in one piece.
func (rec record) write(what event) {
	rec.Event = what
	p, err := binary.Append(make([]byte, 0, recordSize), binary.LittleEndian, rec)
	if err == nil {
		_, err = os.Stdout.Write(p)
	}
	if err != nil {
		panic(err)
	}
}

func hash(token string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(token))
	return h.Sum64()
}
