// Package report has what is said of queues in JSON, by the commands and by the server alike.
package report

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape replaces what is not printable in a message, except the ends of its lines.
func Escape(message string) string {
	var b strings.Builder
	for i, size := 0, 0; i < len(message); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(message[i:])
		switch {
		case r == '\n' || r != utf8.RuneError && strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.Quote(message[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// Bytes returns a text of any bytes for JSON, and the base64 that stands beside it where it is
// not UTF-8: that would be lost in JSON. It is "" otherwise.
func Bytes(s string) (plain, encoded string) {
	if utf8.ValidString(s) {
		return s, ""
	}
	return strings.ToValidUTF8(s, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(s))
}

// Print prints a value, indented. Strings hold no character that a terminal would act on.
func Print(w io.Writer, value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(plainJSON(b.Bytes()))
	return err
}

// plainJSON escapes what encoding/json leaves as it is and is not printable: DEL, the C1 controls,
// marks that change the direction of text.
func plainJSON(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, r := range string(data) {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// Time is a time in JSON; nil for none.
func Time(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format("2006-01-02T15:04:05.000000Z")
	return &s
}
