package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// fault is a kind of fault.
type fault struct {
	name string
	// do causes the fault for a while, and ends it. It returns the number of its
	// effects, as far as they can be counted at once; 0 means that it had none.
	do func(r *round, s strike) (effect int, err error)
	// parallel says that other faults may strike at the same time.
	parallel bool
	// effects is the name in the checker's tally that counts the effects; "" if do
	// counts them.
	effects string
}

var faults = []fault{
	{name: "kill-client", do: killClient, effects: leftByKilled},
	{name: "stop-client", do: stopClient, effects: lostByStopped},
	{name: "reset", do: strikeLinks(resetConnections, &applied.resets), parallel: true},
	{name: "drop-reply", do: strikeLinks(dropReplies, &applied.lost), parallel: true},
	{name: "stall-requests", do: strikeLinks(stallRequests, &applied.held), parallel: true},
	{name: "stall-replies", do: strikeLinks(stallReplies, &applied.held), parallel: true},
	{name: "quiet-links", do: strikeLinks(silenceConnections, &applied.quiet), parallel: true},
	{name: "lose-messages", do: strikeLinks(loseAllMessages, &applied.muted), parallel: true},
	{name: "deaf-links", do: strikeLinks(deafenSubscriptions, &applied.deaf), parallel: true},
	{name: "latency", do: strikeLinks(addLatency, &applied.delayed), parallel: true},
	{name: "script-flush", do: flushScripts},
	{name: "kill-pubsub", do: killPubSub},
	{name: "restart-always", do: restartWith("always")},
	{name: "restart-everysec", do: restartWith("everysec")},
	{name: "restart-no", do: restartWith("no")},
	{name: "power-cut", do: cutPower, effects: "log entries cut off"},
	{name: "full", do: fillUp},
	{name: "clock-ahead", do: setClock(time.Hour), effects: holdsStruck + setAhead},
	{name: "clock-back", do: setClock(-time.Hour)},
	{name: "stop-server", do: stopServer},
	{name: "cut-replica", do: cutReplica, effects: underReplicated},
}

// poolOfOne is not a strike: every fourth client, from the third on, has a pool of one
// connection all the time.
const poolOfOne = "pool-of-one"

func killClient(r *round, s strike) (int, error) {
	p := r.running[s.slot]
	p.kill()
	return 1, r.startClient(p.slot)
}

// stopClient stops a client for longer than any TTL or lease.
func stopClient(r *round, s strike) (int, error) {
	return 1, r.running[s.slot].stop(600*time.Millisecond + part(s.length, 800*time.Millisecond))
}

// linkFault causes a fault on the connections of one client.
type linkFault func(s strike, p *proxy)

func resetConnections(s strike, p *proxy) {
	p.requests.set(condition{reset: true})
	p.replies.set(condition{reset: true})
	s.during(20 * time.Millisecond)
}

func dropReplies(s strike, p *proxy) {
	p.replies.set(condition{lose: true})
	s.during(60 * time.Millisecond)
}

func stallRequests(s strike, p *proxy) {
	p.requests.set(condition{hold: true})
	s.during(1500 * time.Millisecond)
}

func stallReplies(s strike, p *proxy) {
	p.replies.set(condition{hold: true})
	s.during(1500 * time.Millisecond)
}

// silenceConnections has the open connections carry nothing any more, like those of a machine that
// has lost its network or of which a firewall has forgotten the connections. No side is told.
func silenceConnections(s strike, p *proxy) {
	p.requests.set(condition{quiet: true})
	p.replies.set(condition{quiet: true})
	s.during(20 * time.Millisecond)
}

// loseAllMessages has no message of Pub/Sub arrive. Everything else does, on the same connections,
// too.
func loseAllMessages(s strike, p *proxy) {
	p.replies.set(condition{mute: true})
	s.during(1500 * time.Millisecond)
}

// deafenSubscriptions leaves the connections that are subscribed meanwhile half open: what the
// server sends on them is lost from then on, and no side is told.
func deafenSubscriptions(s strike, p *proxy) {
	p.replies.set(condition{deaf: true})
	s.during(500 * time.Millisecond) // on a busy machine a connection may take long to notice
}

func addLatency(s strike, p *proxy) {
	late := condition{delay: 5*time.Millisecond + part(s.pick, 60*time.Millisecond)}
	p.requests.set(late)
	p.replies.set(late)
	s.during(time.Second)
}

// strikeLinks causes a fault on the connections of one client, or of all.
func strikeLinks(kind linkFault, counter interface{ Load() int64 }) func(*round, strike) (int, error) {
	return func(r *round, s strike) (int, error) {
		before := counter.Load()
		hit := r.proxies
		if !s.all {
			hit = hit[s.slot:][:1]
		}
		ended := make(chan struct{})
		for _, p := range hit {
			go func() {
				kind(s, p)
				p.clear()
				ended <- struct{}{}
			}()
		}
		for range hit {
			<-ended
		}
		time.Sleep(20 * time.Millisecond) // data that was held is counted when it goes on
		return int(counter.Load() - before), nil
	}
}

// counted strikes, and returns how many errors with a code the server replied with during the
// strike and a while after it.
func (r *round) counted(s strike, code string, do func() error) (int, error) {
	before := r.errors(code)
	if err := do(); err != nil {
		return 0, err
	}
	s.during(400 * time.Millisecond)
	return r.errors(code) - before, nil
}

var errorStat = regexp.MustCompile(`(?m)^errorstat_(\w+):count=(\d+)`)

// errors returns how often the server has replied with an error.
func (r *round) errors(code string) int {
	info := r.server.rdb.Info(context.Background(), "errorstats").Val()
	for _, found := range errorStat.FindAllStringSubmatch(info, -1) {
		if found[1] == code {
			n, _ := strconv.Atoi(found[2])
			return n
		}
	}
	return 0
}

func flushScripts(r *round, s strike) (int, error) {
	return r.counted(s, "NOSCRIPT", func() error { return r.server.rdb.ScriptFlush(context.Background()).Err() })
}

func killPubSub(r *round, _ strike) (int, error) {
	n, err := r.server.rdb.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Result()
	return int(n), err
}

// fillUp makes the server reject commands that need memory.
func fillUp(r *round, s strike) (int, error) {
	return r.counted(s, "OOM", func() error {
		ctx := context.Background()
		err := r.server.rdb.ConfigSet(ctx, "maxmemory", "1000000").Err()
		s.during(800 * time.Millisecond)
		if err == nil {
			err = r.server.rdb.ConfigSet(ctx, "maxmemory", "0").Err()
		}
		return err
	})
}

// restartWith sets an fsync policy, kills the server after a while, and starts it again.
func restartWith(policy string) func(*round, strike) (int, error) {
	return func(r *round, s strike) (int, error) {
		if err := r.server.setPolicy(policy); err != nil {
			return 0, err
		}
		s.during(400 * time.Millisecond)
		if _, err := r.server.kill(0); err != nil {
			return 0, err
		}
		s.during(300 * time.Millisecond)
		return 1, r.server.up([]string{"always", "everysec", "no"}[int(3*s.pick)])
	}
}

// cutPower kills the server and cuts off what had not reached the disk.
func cutPower(r *round, s strike) (int, error) {
	taken, err := r.server.kill(randomCut(s.pick))
	if err != nil {
		return 0, err
	}
	s.during(200 * time.Millisecond)
	return taken, r.server.up("everysec")
}

// setClock moves the server's clock, within a few hours of the real time.
func setClock(by time.Duration) func(*round, strike) (int, error) {
	const most = 2 * time.Hour
	return func(r *round, s strike) (int, error) {
		offset, effect := r.server.offset+by, 1
		if offset > most || offset < -most {
			offset, effect = 0, 0 // back to the real time
		}
		if err := r.server.setClock(offset); err != nil {
			return 0, err
		}
		s.during(time.Second)
		now, err := r.server.rdb.Time(context.Background()).Result()
		if err != nil {
			return 0, err
		}
		if off := time.Until(now) - offset; off < -time.Minute || off > time.Minute {
			return 0, fmt.Errorf("the server's clock is %v off what it was set to", off)
		}
		return effect, nil
	}
}

// stopServer stops the server's process for a while. A command sent meanwhile takes as long.
func stopServer(r *round, s strike) (int, error) {
	if err := r.server.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	began := time.Now()
	answered := make(chan time.Duration, 1)
	go func() {
		_ = r.server.rdb.Ping(context.Background()).Err()
		answered <- time.Since(began)
	}()
	s.during(1200 * time.Millisecond)
	stopped := time.Since(began)
	if err := r.server.Signal(syscall.SIGCONT); err != nil {
		return 0, err
	}
	if <-answered < stopped {
		return 0, nil
	}
	return 1, nil
}
