package sluice

import (
	"crypto/rand"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
