package sluice

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/watch"
)

// The digests are kept beside the scripts instead of being computed, because
// SHA-1 panics under GODEBUG=fips140=only. TestDigests keeps them true.
//
//go:embed lua
var lua embed.FS

// The lock's scripts use no other preludes than kinds, fence, permits, line and join, and one key, with the line two or, with fences, three. The
// queue's, except purge, begin with what they share: the files of lua/shared that are named behind the
// policy, in this order, and before prelude and publish rights. The policy is what RETRY says in the script's header.
var (
	scriptAcquire       = newScript("acquire", redisexec.Never, "kinds", "fence", "line", "join")
	scriptRelease       = newScript("release", redisexec.Idempotent, "kinds", "fence", "line")
	scriptExtend        = newScript("extend", redisexec.Idempotent, "kinds", "fence")
	scriptPermitAcquire = newScript("permit_acquire", redisexec.Never, "kinds", "fence", "line", "permits", "join")
	scriptPermitExtend  = newScript("permit_extend", redisexec.Idempotent, "kinds", "fence")
	scriptPermitRelease = newScript("permit_release", redisexec.Idempotent, "kinds", "fence", "line", "permits")
	scriptPermitInspect = newScript("permit_inspect", redisexec.ReadOnly, "kinds", "fence")
	scriptInspect       = newScript("inspect", redisexec.ReadOnly, "kinds", "fence")
	scriptForce         = newScript("force", redisexec.Never, "kinds", "fence", "line", "permits")
	scriptCheckLock     = newScript("check_lock", redisexec.ReadOnly, "check")

	scriptEnqueue    = newScript("enqueue", redisexec.Never, "prelude", "idle", "new", "wake", "batch", "read", "failure", "state", "fields", "put")
	scriptExchange   = newScript("exchange", redisexec.Never, "prelude", "idle", "wake", "place", "read", "limits", "freed", "failure", "tally", "done", "state", "plain", "fields", "trim", "due", "finish")
	scriptPop        = newScript("pop", redisexec.Never, "prelude", "idle", "wake", "limits", "read", "failure", "tally", "state", "fields", "trim", "due")
	scriptPeek       = newScript("peek", redisexec.ReadOnly, "prelude", "read", "state", "fields", "page", "payload", "due")
	scriptHeartbeat  = newScript("heartbeat", redisexec.Idempotent, "prelude", "limits", "renew", "state", "fields")
	scriptGiveBack   = newScript("giveback", redisexec.Idempotent, "prelude", "idle", "wake", "limits", "freed", "failure", "tally", "state", "fields")
	scriptBury       = newScript("bury", redisexec.Idempotent, "prelude", "idle", "wake", "limits", "freed", "failure", "tally", "state", "fields", "trim")
	scriptRevive     = newScript("revive", redisexec.Never, "prelude", "idle", "wake", "state", "fields")
	scriptDrop       = newScript("drop", redisexec.Never, "prelude")
	scriptTrim       = newScript("trim", redisexec.Never, "prelude", "tally", "done", "trim")
	scriptCancel     = newScript("cancel", redisexec.Never, "prelude", "publish", "idle", "wake", "limits", "freed", "failure", "state", "fields")
	scriptReschedule = newScript("reschedule", redisexec.Never, "prelude", "idle", "wake", "failure", "state", "fields")
	scriptGet        = newScript("get", redisexec.ReadOnly, "prelude", "state", "fields", "payload")
	scriptNext       = newScript("next", redisexec.Idempotent, "prelude", "idle", "place", "limits", "head")
	scriptHeads      = newHeads()
	scriptStats      = newScript("stats", redisexec.ReadOnly, "prelude", "limits")
	scriptList       = newScript("list", redisexec.ReadOnly, "prelude", "read", "state", "fields", "page", "lists", "payload")
	scriptPause      = newScript("pause", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	scriptResume     = newScript("resume", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	scriptLimit      = newScript("limit", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	scriptSeen       = newScript("seen", redisexec.Idempotent, "prelude")
	scriptWorkers    = newScript("workers", redisexec.ReadOnly, "prelude")
	scriptPurge      = newScript("purge", redisexec.Never)
	scriptCheckQueue = newScript("check_queue", redisexec.ReadOnly, "check")
	scriptMark       = newScript("mark", redisexec.Idempotent, "rights")
)

// scripts is all of them, by name.
var scripts = map[string]*redisexec.Script{}

func newScript(name string, retry redisexec.RetryPolicy, preludes ...string) *redisexec.Script {
	if slices.Contains(preludes, "prelude") || slices.Contains(preludes, "publish") {
		preludes = slices.Insert(preludes, 0, "rights")
	}
	return addScript(name, sourceOf(name, preludes...), retry)
}

func sourceOf(name string, preludes ...string) (source string) {
	for _, part := range preludes {
		source += luaFile("shared/" + part + ".lua")
	}
	return source + luaFile(name+".lua")
}

func addScript(name, source string, retry redisexec.RetryPolicy) *redisexec.Script {
	scripts[name] = redisexec.NewScript(source, digestOf(name), retry)
	return scripts[name]
}

// newHeads makes the script that looks at up to watch.MaxLook queues: the last line of heads.lua, which is for one, is
// repeated, so that each call names its keys literally, as in all scripts.
func newHeads() *redisexec.Script {
	source := sourceOf("heads", "rights", "prelude", "head")
	body := strings.TrimSuffix(source, "\n")
	last := body[strings.LastIndexByte(body, '\n')+1:] + "\n"
	for i := 1; i < watch.MaxLook; i++ {
		var numbers []string
		for n := 1; n <= 3; n++ {
			numbers = append(numbers, fmt.Sprintf("KEYS[%d]", n), fmt.Sprintf("KEYS[%d]", 3*i+n))
		}
		for n := 1; n <= 2; n++ {
			numbers = append(numbers, fmt.Sprintf("ARGV[%d]", n), fmt.Sprintf("ARGV[%d]", 2*i+n))
		}
		source += strings.NewReplacer(numbers...).Replace(last)
	}
	return addScript("heads", source, redisexec.Idempotent)
}

func digestOf(name string) string {
	for line := range strings.Lines(luaFile("digests.txt")) {
		if digest, of, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && of == name {
			return digest
		}
	}
	return "" // TestDigests finds it
}

func luaFile(name string) string {
	data, err := lua.ReadFile("lua/" + name)
	if err != nil {
		panic(fmt.Sprintf("sluice: embedded script: %v", err))
	}
	return string(data)
}

// Times and durations, as scripts are given them.

// longestDuration is the longest duration that any argument may be: with it no sum overflows and
// no time passes the year 2200.
const longestDuration = 100 * 365 * 24 * time.Hour

// millis rounds up, so that a key never lives shorter than its holder believes.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// duration is a TTL that the server answered, within what fits a time.Duration: a foreign key
// may live for longer.
func duration(ms int64) time.Duration {
	return time.Duration(min(ms, int64(longestDuration/time.Millisecond))) * time.Millisecond
}
