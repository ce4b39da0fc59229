package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Columns of what an operation uses: a lock and its unlock, or a task. Commands are all that
// the server runs, including those within scripts and those of other clients.
const (
	commandsPerOp   = "commands/op"
	scriptsPerOp    = "scripts/op"
	serverTimePerOp = "server time/op"
	serverCPUPerOp  = "server CPU/op"
	allocsPerOp     = "allocs"
)

// ofRedis has the columns of what Redis runs.
var ofRedis = []string{commandsPerOp, scriptsPerOp, serverTimePerOp, serverCPUPerOp}

var (
	commandsColumn = column{commandsPerOp, median, threeDigits}
	scriptsColumn  = column{scriptsPerOp, median, threeDigits}
	// serverTimeColumn has what commands take once they are read and parsed, and
	// serverCPUColumn what the server's main thread takes for all that it does.
	serverTimeColumn = column{serverTimePerOp, median, inTime}
	serverCPUColumn  = column{serverCPUPerOp, median, inTime}
	// allocsColumn is for scenarios of one process.
	allocsColumn = column{allocsPerOp, median, whole}
)

func threeDigits(v float64) string { return fmt.Sprintf("%.3g", v) }

// usage has counts since the start of the server and of this process.
type usage struct {
	scripts, commands       float64 // by the server
	scriptTime, commandTime float64 // in ns; what runs within a script counts in both
	cpu                     float64 // of the server's main thread, in ns; 0 if the server does not tell
	mallocs                 float64 // by this process
}

// serverTime is the time that the server took for scripts or, if there were none, for
// commands. It is too short for a contender that sends both.
func (u usage) serverTime() float64 {
	if u.scripts > 0 {
		return u.scriptTime
	}
	return u.commandTime
}

func (u usage) minus(v usage) usage {
	return usage{
		u.scripts - v.scripts, u.commands - v.commands, u.scriptTime - v.scriptTime, u.commandTime - v.commandTime,
		u.cpu - v.cpu, u.mallocs - v.mallocs,
	}
}

// meter measures what a turn uses. It is started before the turn; a turn that prepares
// something starts it again after that.
type meter struct {
	addr string
	from usage
}

func (m *meter) start(ctx context.Context) (err error) {
	m.from, err = used(ctx, m.addr)
	return err
}

// read returns what was used since start.
func (m *meter) read(ctx context.Context) (usage, error) {
	now, err := used(ctx, m.addr)
	return now.minus(m.from), err
}

// perOp adds to a result what each operation used.
func (m *meter) perOp(ctx context.Context, r *result) error {
	if r.ops == 0 {
		return nil
	}
	u, err := m.read(ctx)
	if r.extra == nil {
		r.extra = map[string]float64{}
	}
	r.extra[commandsPerOp] = u.commands / r.ops
	r.extra[scriptsPerOp] = u.scripts / r.ops
	r.extra[serverTimePerOp] = u.serverTime() / r.ops
	r.extra[serverCPUPerOp] = u.cpu / r.ops
	r.extra[allocsPerOp] = u.mallocs / r.ops
	return err
}

var commandsPerSecond = measure{"commands/s", less, func(v float64) string {
	if v >= 1000 {
		return whole(v) + "/s"
	}
	return threeDigits(v) + "/s"
}}

// commandsDuring returns how many commands per second the server runs during d.
func (m *meter) commandsDuring(ctx context.Context, d time.Duration) (float64, error) {
	_, commands, err := m.during(ctx, d)
	return commands, err
}

// during returns how many scripts and commands per second the server runs during d.
func (m *meter) during(ctx context.Context, d time.Duration) (scripts, commands float64, err error) {
	if err := m.start(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	sleep(ctx, d)
	u, err := m.read(ctx)
	seconds := time.Since(began).Seconds()
	return u.scripts / seconds, u.commands / seconds, err
}

// sleep returns when d has passed or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// housekeeping has the commands that set up connections, and those of this program.
var housekeeping = []string{"auth", "client", "config", "hello", "info", "script", "select", "slowlog"}

func used(ctx context.Context, addr string) (u usage, err error) {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.mallocs = float64(stats.Mallocs)
	all, err := info(ctx, addr, "commandstats")
	for key, text := range all {
		var calls, microseconds float64
		if _, err := fmt.Sscanf(text, "calls=%f,usec=%f", &calls, &microseconds); err != nil {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "cmdstat_"), "|")
		switch {
		case slices.Contains(housekeeping, name):
			continue
		case strings.HasPrefix(name, "eval"):
			u.scripts += calls
			u.scriptTime += microseconds * 1000
		}
		u.commands += calls
		u.commandTime += microseconds * 1000
	}
	if err == nil {
		u.cpu, err = usedCPU(ctx, addr)
	}
	return u, err
}

// usedCPU returns the CPU time of the server's main thread, in ns.
func usedCPU(ctx context.Context, addr string) (ns float64, err error) {
	stats, err := info(ctx, addr, "cpu")
	for _, key := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		seconds, _ := strconv.ParseFloat(stats[key], 64)
		ns += seconds * 1e9
	}
	return ns, err
}
