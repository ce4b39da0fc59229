package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// mostCompressed is how many pages are compressed at the same time: a compressor needs a megabyte,
// and a viewer may be slow to read. The others get theirs as it is.
const mostCompressed = 4

// compressors lends writers that compress. A nil one is not made yet.
type compressors chan *gzip.Writer

func newCompressors() compressors {
	c := make(compressors, mostCompressed)
	for range mostCompressed {
		c <- nil
	}
	return c
}

// acceptsGzip reports whether who asks can read what is compressed so: what is said of gzip counts,
// else what is said of all codings.
func acceptsGzip(r *http.Request) bool {
	accepts := false
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, parameter, _ := strings.Cut(strings.ToLower(part), ";")
		_, q, isWeighed := strings.Cut(parameter, "=")
		weight, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		may := !isWeighed || err == nil && weight > 0
		switch strings.TrimSpace(coding) {
		case "gzip":
			return may
		case "*":
			accepts = may
		}
	}
	return accepts
}

// body returns where a page is written to, and a function that ends it, whatever has become of it.
// It sets the headers that say how the page is written.
//
// What is reflected from a query stands beside the token of forms in a page. So that its length
// cannot betray the token (BREACH), a foreign site must not have a visitor's browser ask for it: a
// SameSite=Strict cookie, from which the token is made, is not sent then.
func (v *visit) body() (io.Writer, func() error) {
	v.w.Header().Add("Vary", "Accept-Encoding")
	if !acceptsGzip(v.r) {
		return v.w, func() error { return nil }
	}
	select {
	case z := <-v.compressors:
		if z == nil {
			z, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // a level that there is
		}
		z.Reset(v.w)
		v.w.Header().Set("Content-Encoding", "gzip")
		return z, func() error {
			err := z.Close()
			z.Reset(nil) // keeps no visit
			v.compressors <- z
			return err
		}
	default:
		return v.w, func() error { return nil }
	}
}

// compress returns what a file is when it is compressed.
func compress(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(content); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

// serve answers with the file.
func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h, content := w.Header(), f.content
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Add("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		content = f.compressed
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	_, _ = w.Write(content)
}
