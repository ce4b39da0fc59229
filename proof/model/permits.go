package model

import (
	"cmp"
	"slices"
)

// Permits is what the server holds of a name with permits. Times are those of the server's clock,
// in any unit.
type Permits struct {
	Number int      // how many there are; says nothing while none is held
	Held   []Permit // the first that ends is the first here
}

// Permit is what one holder has.
type Permit struct {
	Token int
	Ends  int64
}

// OtherNumber is what Acquire returns if the name is held with another number of permits.
const OtherNumber = -1

// Elapse lets time pass: a permit ends by itself.
func (p *Permits) Elapse(now int64) {
	p.Held = slices.DeleteFunc(p.Held, func(h Permit) bool { return h.Ends <= now })
}

// Acquire takes a permit, or finds that the token has one already, and returns 0. If all are held,
// Acquire returns for how long the first that ends may be.
func (p *Permits) Acquire(now int64, number, token int, ttl int64) (left int64) {
	p.Elapse(now)
	switch {
	case len(p.Held) > 0 && p.Number != number:
		return OtherNumber
	case p.Extend(now, token, ttl):
		return 0
	case len(p.Held) >= number:
		return p.Held[0].Ends - now
	}
	p.Number, p.Held = number, append(p.Held, Permit{token, now + ttl})
	p.sort()
	return 0
}

// Extend gives a permit that the token has at least this TTL.
func (p *Permits) Extend(now int64, token int, ttl int64) bool {
	p.Elapse(now)
	for i := range p.Held {
		if h := &p.Held[i]; h.Token == token {
			h.Ends = max(h.Ends, now+ttl)
			p.sort()
			return true
		}
	}
	return false
}

// Release gives a permit back that the token has.
func (p *Permits) Release(now int64, token int) bool {
	p.Elapse(now)
	before := len(p.Held)
	p.Held = slices.DeleteFunc(p.Held, func(h Permit) bool { return h.Token == token })
	return len(p.Held) < before
}

// Force gives all permits back, and returns the tokens that had them.
func (p *Permits) Force(now int64) (tokens []int) {
	p.Elapse(now)
	for _, h := range p.Held {
		tokens = append(tokens, h.Token)
	}
	p.Held = nil
	return tokens
}

// Ends returns until when the token has a permit, 0 if it has none.
func (p *Permits) Ends(token int) int64 {
	for _, h := range p.Held {
		if h.Token == token {
			return h.Ends
		}
	}
	return 0
}

func (p *Permits) sort() {
	slices.SortFunc(p.Held, func(a, b Permit) int {
		return cmp.Or(cmp.Compare(a.Ends, b.Ends), cmp.Compare(a.Token, b.Token))
	})
}
