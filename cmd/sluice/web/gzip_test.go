package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestPage_IsCompressedForWhoReadsThat, with its files, and is the same then.
func TestPage_IsCompressedForWhoReadsThat(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	fill(t, newQueue(t, rdb, "orders"), 50, 0, "a")
	s := newSite(t, rdb, Options{Prefix: "/ops", Write: true})
	ask := func(path, accepts string) (*http.Response, []byte) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		require.NoError(t, err)
		r.Header.Set("Accept-Encoding", accepts)
		response, err := s.http.Do(r)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, "Accept-Encoding", response.Header.Get("Vary"), path)
		return response, body
	}
	for _, path := range []string{"/queues/orders?n=250", "/", "/nowhere", "/assets/" + s.page.files["page.css"].name} {
		plain, whole := ask(path, "identity")
		require.Empty(t, plain.Header.Get("Content-Encoding"))
		packed, body := ask(path, "br, gzip;q=0.8")
		require.Equal(t, plain.StatusCode, packed.StatusCode)
		require.Equal(t, plain.Header.Get("Content-Type"), packed.Header.Get("Content-Type"))
		require.Equal(t, "gzip", packed.Header.Get("Content-Encoding"), path)
		require.Less(t, len(body), len(whole)/2, path)
		z, err := gzip.NewReader(bytes.NewReader(body))
		require.NoError(t, err)
		unpacked, err := io.ReadAll(z)
		require.NoError(t, err)
		require.Equal(t, bytes.HasSuffix(whole, []byte("</html>\n")), bytes.HasSuffix(unpacked, []byte("</html>\n")), "it is whole")
		require.InDelta(t, len(whole), len(unpacked), 2000, "nonces and times differ")
	}
	for accepts, want := range map[string]bool{"": false, "gzip": true, "GZIP ; q=1": true, "gzip;q=0": false, "*": true, "br": false, "gzip;q=x": false, "*;q=0, gzip": true} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept-Encoding", accepts)
		require.Equal(t, want, acceptsGzip(r), accepts)
	}
}

// TestPage_FewAreCompressedAtATime: a viewer who is slow to read has a compressor, and keeps no
// other from the page.
func TestPage_FewAreCompressedAtATime(t *testing.T) {
	t.Parallel()
	s := newSite(t, redistest.Start(t).Client(t), Options{})
	var held []*gzip.Writer
	for range mostCompressed {
		held = append(held, <-s.page.compressors)
	}
	encoding := func() string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/", nil)
		require.NoError(t, err)
		r.Header.Set("Accept-Encoding", "gzip")
		got := s.send(r)
		require.Equal(t, http.StatusOK, got.StatusCode)
		return got.Header.Get("Content-Encoding")
	}
	require.Empty(t, encoding())
	for _, z := range held {
		s.page.compressors <- z
	}
	for range 3 * mostCompressed {
		require.Equal(t, "gzip", encoding(), "it is given back")
	}
}
