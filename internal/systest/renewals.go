package systest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Renewals is a hook that watches what a client sends, for extensions that are sent, or are
// under way, for a token whose Unlock has returned.
type Renewals struct {
	digest string // of the script that extends

	mu       sync.Mutex
	released map[string]bool
	sent     int
	after    int // for tokens that had been released when it was sent, or answered
}

// NewRenewals returns the hook. It knows the script that extends by its digest.
func NewRenewals(t testing.TB) *Renewals {
	digests, err := os.ReadFile(filepath.Join(Root(t), "lua", "digests.txt"))
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^(\w+)  extend$`).FindStringSubmatch(string(digests))
	require.NotNil(t, line, "no digest of the script that extends")
	return &Renewals{digest: line[1], released: map[string]bool{}}
}

// extends says whether a command runs the script that extends, by its digest or in full.
func (r *Renewals) extends(args []any) bool {
	if len(args) < 4 {
		return false
	}
	script, _ := args[1].(string)
	if args[0] == "eval" {
		sum := sha1.Sum([]byte(script)) // as Redis names scripts
		script = hex.EncodeToString(sum[:])
	}
	return script == r.digest
}

func (r *Renewals) note(cmds []redis.Cmder, answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range cmds {
		args := cmd.Args()
		if !r.extends(args) {
			continue
		}
		if !answered {
			r.sent++
		}
		for _, arg := range args[3:] {
			if token, ok := arg.(string); ok && r.released[token] {
				r.after++
			}
		}
	}
}

// Released tells the hook that a token's Unlock has returned.
func (r *Renewals) Released(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released[token] = true
}

// DialHook implements redis.Hook.
func (*Renewals) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r *Renewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.note([]redis.Cmder{cmd}, false)
		defer r.note([]redis.Cmder{cmd}, true)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r *Renewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.note(cmds, false)
		defer r.note(cmds, true)
		return next(ctx, cmds)
	}
}

// Counts returns how many extensions were sent, and how many for a token that had been
// released when they were sent or answered.
func (r *Renewals) Counts() (sent, after int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent, r.after
}
