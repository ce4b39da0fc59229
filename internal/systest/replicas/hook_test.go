package replicas

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// counts is a hook that counts the WAITs that a client sends, the commands behind one, and those
// with no command before them.
type counts struct{ waits, behind, alone atomic.Int64 }

func (*counts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
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
