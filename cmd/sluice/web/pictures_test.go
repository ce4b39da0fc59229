package web

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

var (
	pictures    = flag.String("pictures", "", "folder into which to write the pictures of the docs")
	pictureDemo = flag.Duration("pictures-demo", 4*time.Minute, "for how long the demo runs before they are taken")
)

// TestPictures takes the pictures of docs/page.md:
//
//	go test -run TestPictures -timeout 20m ./web -pictures ../../../docs/img
func TestPictures(t *testing.T) {
	if *pictures == "" {
		return // a command, not a test
	}
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 1180, 760)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		demo(t, rdb, *pictureDemo)
	}()
	for done := false; !done; {
		s.get("/")
		select {
		case <-watched:
			done = true
		case <-time.After(2 * time.Second):
		}
	}
	take := func(name, path string, width, height int64) {
		b.resize(width, height)
		b.open(s.url + path)
		b.eventually(`![...document.querySelectorAll('.tab-rate')].some((e) => e.textContent === '…')`) // a slow machine has made a gap
		content, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(*pictures, name+".png"), smaller(t, content), 0o644))
	}
	b.scheme("light")
	take("page-queues", "/", 1180, 560)
	take("page-dead", "/queues/webhooks?state=dead&n=10", 1180, 900)
	take("page-task", "/queues/webhooks/tasks/hook-041004?payload=1", 1180, 860)
	take("page-locks", "/locks", 1180, 470)
	b.scheme("dark")
	take("page-queues-dark", "/", 1180, 560)
	take("page-queue-dark", "/queues/mail?n=8", 1180, 860)
	take("page-phone", "/", 375, 812)
	take("page-phone-queue", "/queues/webhooks?state=dead&n=10", 375, 812)
}

// smaller writes a picture with 256 colours, which is enough for a page, in a third of the bytes.
func smaller(t *testing.T, content []byte) []byte {
	full, err := png.Decode(bytes.NewReader(content))
	require.NoError(t, err)
	small := image.NewPaletted(full.Bounds(), palette(full))
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			small.Set(x, y, full.At(x, y))
		}
	}
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	return out.Bytes()
}

// palette returns 256 colours for a picture: of those that are alike, the one that it has most of.
func palette(picture image.Image) color.Palette {
	type alike [3]uint32
	counts, totals := map[color.Color]int{}, map[alike]int{}
	most := map[alike]color.Color{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			c := picture.At(x, y)
			r, g, b, _ := c.RGBA()
			bucket := alike{r >> 11, g >> 11, b >> 11}
			counts[c]++
			totals[bucket]++
			if counts[c] > counts[most[bucket]] {
				most[bucket] = c
			}
		}
	}
	all := slices.SortedFunc(maps.Keys(totals), func(a, b alike) int { return totals[b] - totals[a] })
	var colours color.Palette
	for _, bucket := range all[:min(len(all), 256)] {
		colours = append(colours, most[bucket])
	}
	return colours
}
