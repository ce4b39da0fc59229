package distributed

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// waitCounts is a hook that counts the WAITs that a client sends, the commands behind one, and those
// with no command before them.
type waitCounts struct{ waits, behind, alone atomic.Int64 }

func (*waitCounts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*waitCounts) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *waitCounts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		for i, command := range commands {
			if command.Name() == "wait" {
				c.waits.Add(1)
				c.behind.Add(int64(len(commands) - 1 - i))
				if i == 0 {
					c.alone.Add(1)
				}
			}
		}
		return next(ctx, commands)
	}
}
