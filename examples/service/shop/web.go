package shop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Thumbnail returns an image in a quarter of its width and height. An error means that the input is
// no PNG.
func Thumbnail(data []byte) ([]byte, error) {
	large, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	b := large.Bounds()
	small := image.NewRGBA(image.Rect(0, 0, b.Dx()/4+1, b.Dy()/4+1))
	for x := range small.Rect.Dx() {
		for y := range small.Rect.Dy() {
			small.Set(x, y, large.At(b.Min.X+4*x, b.Min.Y+4*y))
		}
	}
	var out bytes.Buffer
	err = png.Encode(&out, small)
	return out.Bytes(), err
}

// Notify tells the partner of a paid order. With an error, again says when the partner wants to be
// asked again: 0 if it does not say.
func Notify(ctx context.Context, partner, order string) (again time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, partner+"?order="+url.QueryEscape(order), nil)
	if err != nil {
		return 0, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	if reply.StatusCode < 300 {
		return 0, nil
	}
	if reply.StatusCode == http.StatusTooManyRequests || reply.StatusCode == http.StatusServiceUnavailable {
		seconds, _ := strconv.Atoi(reply.Header.Get("Retry-After"))
		again = time.Duration(seconds) * time.Second
	}
	return again, errors.New("the partner says " + reply.Status)
}

// Answer answers a request by an error, or by "ok" for nil. bad is the error of a wrong argument.
func Answer(w http.ResponseWriter, err, bad error) {
	switch {
	case err == nil:
		fmt.Fprintln(w, "ok")
	case errors.Is(err, ErrSoldOut), errors.Is(err, ErrNotUnpaid):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, bad):
		http.Error(w, "bad request", http.StatusBadRequest)
	default: // Redis is away, or a lock is held for long: a repeat is safe
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}
