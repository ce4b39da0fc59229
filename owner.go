package sluice

import (
	"crypto/rand"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// maxOwner is the most bytes of a label.
	maxOwner = 64
	// randomLength is how many characters of a token are random: 5 bits each. inspect.lua has it too.
	randomLength = 26
)

// errOwner says what is wrong with a label.
var errOwner = fmt.Errorf("%w: a label of an owner has 1 to %d bytes of printable UTF-8", ErrInvalid, maxOwner)

// WithOwner sets a label that says which program or host holds the lock: Locker.Inspect shows it, to every client of
// the server, so it must hold no secret. It has 1 to 64 bytes of printable UTF-8; otherwise the
// error is ErrInvalid. It identifies no holder: any number of them may have the same label.
//
// It is kept in the lock's key, in front of the random token. So a lock is handed over within the process only
// between callers with the same label; to one with another it goes by way of Redis. Defaults to no label.
func WithOwner(label string) LockOption {
	return func(o *lockOptions) {
		if o.owner = label; label == "" {
			o.owner = "\x00" // out of range, as in WithMaxHold
		}
	}
}

func isOwner(label string) bool {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	return label != "" && len(label) <= maxOwner && utf8.ValidString(label) && !strings.ContainsFunc(label, unprintable)
}

// newToken returns a token that no other acquisition has: label:random, or only what is random.
func newToken(owner string) string {
	random := rand.Text()[:randomLength]
	if owner == "" {
		return random
	}
	return owner + ":" + random
}

// decodeInspected decodes the reply of inspect.lua: the TTL in ms, and beside it the label of whichever
// client holds the lock, if that was asked for. What could not have been WithOwner's is not shown: it is a
// part of a token that is not the library's.
func decodeInspected(value any) (ms int64, owner string, err error) {
	pair, ok := value.([]any)
	if !ok {
		ms, err = redisexec.Int(value)
		return ms, "", err
	}
	if len(pair) != 2 {
		return 0, "", redisexec.Unexpected(value)
	}
	if owner, ok = pair[1].(string); !ok {
		return 0, "", redisexec.Unexpected(value)
	}
	if !isOwner(owner) {
		owner = ""
	}
	ms, err = redisexec.Int(pair[0])
	return ms, owner, err
}
