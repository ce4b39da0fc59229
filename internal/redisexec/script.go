package redisexec

import (
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Script is a Lua script that the server caches under its digest.
type Script struct {
	source string
	digest any // a string, as an argument
	retry  RetryPolicy
}

// NewScript returns a script. The digest is the source's SHA-1 in hexadecimal. It is
// computed beforehand, because SHA-1 panics under GODEBUG=fips140=only.
func NewScript(source, digest string, retry RetryPolicy) *Script {
	return &Script{source: source, digest: digest, retry: retry}
}

// Source is the script as the server is sent it.
func (s *Script) Source() string { return s.source }

// Retry says what may be done when the reply to the script is lost.
func (s *Script) Retry() RetryPolicy { return s.retry }

// firstKey is where the first key stands in a script's arguments.
const firstKey = 3

// Request returns a request that runs the script with these KEYS and ARGV.
func (s *Script) Request(keys []any, values ...any) Request {
	args := make([]any, 0, firstKey+len(keys)+len(values))
	args = append(args, "evalsha", s.digest, len(keys))
	return Request{Command: Command{Script: s, Args: append(append(args, keys...), values...)}, Recovery: Recovery{Retry: s.retry}}
}

// Key is the first key: of a script's, or of a plain command that has it first.
func (r Command) Key() any {
	if r.Script == nil {
		return r.Args[1]
	}
	return r.Args[firstKey]
}

// isSplit reports whether a server has some of the command's keys and not others, and the command
// can do without its second one.
func (r Command) isSplit(err error) bool {
	return err != nil && r.SecondIsSpare && redis.HasErrorPrefix(err, "TRYAGAIN")
}

// withoutSecond is the request without its second key.
func (r Request) withoutSecond() Request {
	r.SecondIsSpare = false
	r.Args = slices.Clone(r.Args)
	switch n, _ := r.Args[firstKey-1].(int); n {
	case 2:
		r.Args[firstKey-1] = 1
		r.Args = slices.Delete(r.Args, firstKey+1, firstKey+2)
	case 3:
		r.Args[firstKey+1] = r.Args[firstKey+2]
	}
	return r
}

// InFull is a request that brings its script along, so that none of its pipeline overtakes it where the
// server does not know the script.
func (r Request) InFull() Request {
	r.Args = r.inFull()
	return r
}

// inFull is the command with the script itself, which the server then caches.
func (r Command) inFull() []any {
	args := slices.Clone(r.Args)
	args[0], args[1] = "eval", r.Script.source
	return args
}

// Int reads a reply that is an integer. Any other reply is ErrCorrupt.
func Int(value any) (int64, error) {
	n, ok := value.(int64)
	if !ok {
		return 0, Unexpected(value)
	}
	return n, nil
}

// Bool reads a reply that is 1 for yes.
func Bool(value any) (bool, error) {
	n, err := Int(value)
	return n == 1, err
}

// Unexpected is the ErrCorrupt of a reply that its script does not give. It names the
// type only: the reply may hold a payload.
func Unexpected(value any) error {
	return fmt.Errorf("%w: unexpected reply of type %T", ErrCorrupt, value)
}
