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

// inFull is the call's command with the script itself, which the server then
// caches.
func (c call) inFull() []any {
	argv := slices.Clone(c.argv)
	argv[0], argv[1] = "eval", c.script.source
	return argv
}

// The lock's scripts stand alone and use one key; the queue's begin with a
// prelude of what they share.
var (
	scriptAcquire       = newScript("acquire", repeat)
	scriptRelease       = newScript("release", repeat)
	scriptAcquireFenced = newScript("acquire_fenced", repeat)
	scriptReleaseFenced = newScript("release_fenced", repeat)
	scriptExtend        = newScript("extend", repeat)
	scriptInspect       = newScript("inspect", read)
	scriptForce         = newScript("force", once)

	scriptEnqueue    = newScript("enqueue", once, "prelude")
	scriptDequeue    = newScript("dequeue", repeat, "prelude")
	scriptClaim      = newScript("claim", once, "prelude", "due")
	scriptPop        = newScript("pop", once, "prelude", "due")
	scriptPeek       = newScript("peek", read, "prelude", "due")
	scriptHeartbeat  = newScript("heartbeat", repeat, "prelude")
	scriptGiveBack   = newScript("giveback", repeat, "prelude")
	scriptBury       = newScript("bury", repeat, "prelude")
	scriptDead       = newScript("dead", read, "prelude")
	scriptRevive     = newScript("revive", once, "prelude")
	scriptCancel     = newScript("cancel", once, "prelude")
	scriptReschedule = newScript("reschedule", once, "prelude")
	scriptGet        = newScript("get", read, "prelude")
	scriptNext       = newScript("next", read, "prelude")
	scriptStats      = newScript("stats", read, "prelude")
	scriptPurge      = newScript("purge", once)
)

// scripts is all of them, by name.
var scripts = map[string]*script{}

func newScript(name string, mode mode, preludes ...string) *script {
	s := &script{name: name, mode: mode}
	for _, part := range append(preludes, name) {
		s.source += luaFile(part + ".lua")
	}
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
