package web

import (
	"encoding/hex"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isPlain reports whether a character is shown as it is. Others are written as escapes: controls,
// among them those of terminals, marks that turn the direction of text, spaces that look like
// nothing, bytes that are no UTF-8.
func isPlain(r rune, size int) bool {
	return (r != utf8.RuneError || size > 1) && unicode.IsPrint(r)
}

// split calls plain with the runs of text that are shown as they are, and escaped with the escapes
// for the rest.
func split(s string, plain, escaped func(string)) {
	start := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if isPlain(r, size) {
			i += size
			continue
		}
		if start < i {
			plain(s[start:i])
		}
		escaped(escape(s[i : i+size]))
		i += size
		start = i
	}
	if start < len(s) {
		plain(s[start:])
	}
}

// escape writes a character as Go does: \n, \x1b, \u202e.
func escape(char string) string {
	r, size := utf8.DecodeRuneInString(char)
	if r == utf8.RuneError && size <= 1 {
		return fmt.Sprintf(`\x%02x`, char[0])
	}
	quoted := strconv.QuoteRuneToASCII(r)
	return quoted[1 : len(quoted)-1]
}

// shown returns s as text that has no character of which the page has to be afraid. It is for
// attributes.
func shown(s string) string {
	var b strings.Builder
	add := func(part string) { b.WriteString(part) }
	split(s, add, add)
	return b.String()
}

// text returns s for a page: what had to be escaped is marked, and nothing in it turns the
// direction of what stands beside it.
func text(s string) template.HTML {
	if s == "" {
		return `<span class="none">(empty)</span>`
	}
	var b strings.Builder
	b.WriteString("<bdi>")
	split(s,
		func(part string) { b.WriteString(template.HTMLEscapeString(part)) },
		func(part string) {
			b.WriteString(`<span class="esc">` + template.HTMLEscapeString(part) + `</span>`)
		})
	b.WriteString("</bdi>")
	return template.HTML(b.String())
}

// short is text for lists: long ones are cut.
func short(s string) template.HTML {
	const most = 96
	if len(s) <= most {
		return text(s)
	}
	end := most
	for !utf8.RuneStart(s[end]) && end > most-utf8.UTFMax {
		end--
	}
	return text(s[:end]) + `<span class="esc" title="cut, see the whole on its own page">…</span>`
}

// listName is text for names in lists: a long one is cut in its middle, since names that are alike
// often differ at an end. The whole is its title.
func listName(s string) template.HTML {
	const most, head, tail = 48, 30, 16
	runes := make([]int, 0, most+1) // where each character begins
	for i := 0; i < len(s); {
		runes = append(runes, i)
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	if len(runes) <= most {
		return text(s)
	}
	return `<span title="` + template.HTML(template.HTMLEscapeString(shown(cut(s, longestID)))) + `">` +
		text(s[:runes[head]]) + `<span class="esc">…</span>` + text(s[runes[len(runes)-tail]:]) + `</span>`
}

// fromShown returns what a text stands for that was copied from a page, escapes and all.
func fromShown(s string) string {
	var b strings.Builder
	for s != "" {
		if s[0] != '\\' {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		r, multibyte, rest, err := strconv.UnquoteChar(s, 0)
		switch {
		case err != nil: // a backslash that is meant
			b.WriteByte(s[0])
			s = s[1:]
			continue
		case multibyte:
			b.WriteRune(r)
		default:
			b.WriteByte(byte(r))
		}
		s = rest
	}
	return b.String()
}

// mostPayload is how many bytes of a payload are shown.
const mostPayload = 4096

// payload is a task's payload as a page shows it.
type payload struct {
	Size  int
	Cut   bool // it is longer than what is shown
	Asked bool // else only the size is told
	Text  string
	IsHex bool
}

// newPayload prepares a payload: as text if it is that, else as a dump of its bytes.
func newPayload(b []byte, asked bool) payload {
	p := payload{Size: len(b), Asked: asked}
	if !asked {
		return p
	}
	if p.Cut = len(b) > mostPayload; p.Cut {
		b = b[:mostPayload]
		for range utf8.UTFMax - 1 { // not in the middle of a character
			if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size != 1 {
				break
			}
			b = b[:len(b)-1]
		}
	}
	if p.IsHex = !isText(b); p.IsHex {
		p.Text = hex.Dump(b)
		return p
	}
	p.Text = strings.ReplaceAll(string(b), "\r", `\r`)
	return p
}

// isText reports whether bytes are text of which a page need not be afraid.
func isText(b []byte) bool {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if !isPlain(r, size) && r != '\n' && r != '\t' && r != '\r' {
			return false
		}
		i += size
	}
	return true
}
