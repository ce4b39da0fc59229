package sluice

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// The digests are kept beside the scripts instead of being computed, because
// SHA-1 panics under GODEBUG=fips140=only. TestDigests keeps them true.
//
//go:embed lua
var lua embed.FS

// script is a Lua script and the digest under which the server caches it.
type script struct {
	name   string
	source string
	digest string
	sha    any  // the digest, as an argument
	mode   mode // what may be done when a reply is lost: the script's header says why
}

// call sends the script, by digest.
func (s *script) call(keys []any, args ...any) call {
	argv := make([]any, 0, 3+len(keys)+len(args))
	argv = append(argv, "evalsha", s.sha, len(keys))
	return call{script: s, mode: s.mode, argv: append(append(argv, keys...), args...)}
}

// firstKey is where a script's first key stands in its call.
const firstKey = 3

// inFull is the call's command with the script itself, which the server then
// caches.
func (c call) inFull() []any {
	argv := slices.Clone(c.argv)
	argv[0], argv[1] = "eval", c.script.source
	return argv
}

// The lock's scripts stand alone and use one key; the queue's begin with
// preludes of what they share, those in lua/shared.
var (
	scriptAcquire       = newScript("acquire", repeat)
	scriptRelease       = newScript("release", repeat)
	scriptAcquireFenced = newScript("acquire_fenced", repeat)
	scriptReleaseFenced = newScript("release_fenced", repeat)
	scriptExtend        = newScript("extend", repeat)
	scriptInspect       = newScript("inspect", read)
	scriptForce         = newScript("force", once)

	scriptEnqueue    = newScript("enqueue", once, "prelude", "new", "fields", "put")
	scriptDequeue    = newScript("dequeue", repeat, "prelude", "fields")
	scriptClaim      = newScript("claim", once, "prelude", "fields", "due")
	scriptPop        = newScript("pop", once, "prelude", "fields", "due")
	scriptPeek       = newScript("peek", read, "prelude", "fields", "due")
	scriptHeartbeat  = newScript("heartbeat", repeat, "prelude", "fields")
	scriptGiveBack   = newScript("giveback", repeat, "prelude", "fields")
	scriptBury       = newScript("bury", repeat, "prelude", "fields")
	scriptDead       = newScript("dead", read, "prelude", "fields")
	scriptRevive     = newScript("revive", once, "prelude", "fields")
	scriptCancel     = newScript("cancel", once, "prelude", "fields")
	scriptReschedule = newScript("reschedule", once, "prelude", "fields")
	scriptGet        = newScript("get", read, "prelude", "fields")
	scriptNext       = newScript("next", read, "prelude")
	scriptStats      = newScript("stats", read, "prelude")
	scriptPurge      = newScript("purge", once)
)

// scripts is all of them, by name.
var scripts = map[string]*script{}

func newScript(name string, mode mode, preludes ...string) *script {
	s := &script{name: name, mode: mode}
	for _, part := range preludes {
		s.source += luaFile("shared/" + part + ".lua")
	}
	s.source += luaFile(name + ".lua")
	for line := range strings.Lines(luaFile("digests.txt")) {
		if digest, of, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && of == name {
			s.digest = digest
		}
	}
	s.sha = s.digest
	scripts[name] = s
	return s
}

func luaFile(name string) string {
	data, err := lua.ReadFile("lua/" + name)
	if err != nil {
		panic(fmt.Sprintf("sluice: embedded script: %v", err))
	}
	return string(data)
}
