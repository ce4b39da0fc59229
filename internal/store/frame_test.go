package store

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzHeader_RoundTrip: what a producer gives comes back, whatever it is.
func FuzzHeader_RoundTrip(f *testing.F) {
	f.Add("", "", "", "", "", "", int64(0))
	f.Add("", "k", "v", "", "", "payload", int64(1))
	f.Add("kind", "", "", "", "", "payload", int64(15000))
	f.Add("kind", "a", "", "z", "", "payload", int64(16000))
	f.Add("", "b", "", "a", strings.Repeat("x", 200), "\x00\xff", int64(17000))
	f.Add("", "", "", "", "", frameMagic, int64(18000))
	f.Add("", "", "", "", "", frameMagic+"\x00"+frameMagic, int64(19000))
	f.Add("", frameMagic, frameMagic, "", "", frameMagic+"\x04\x01k\x01v", int64(20000))
	f.Fuzz(func(t *testing.T, kind, key1, value1, key2, value2, payload string, us int64) {
		given := map[string]string{}
		for key, value := range map[string]string{key1: value1, key2: value2} {
			if key != "" && key != KindKey && key != ExpiresKey && len(key) <= MaxHeaderKey {
				given[key] = value
			}
		}
		kind = kind[:min(len(kind), MaxHeaderKey)]
		var end time.Time
		if us > 0 {
			end = time.UnixMicro(us)
		}
		stored := Pack(kind, given, end, []byte(payload))
		gotKind, header, expires, got := Unpack(stored)
		require.Equal(t, kind, gotKind)
		require.Equal(t, end, expires)
		require.Equal(t, payload, string(got))
		require.Len(t, header, len(given))
		for key, value := range given {
			require.Equal(t, value, header[key])
		}
		if len(given) == 0 && kind == "" && us <= 0 {
			require.Nil(t, header)
			require.Equal(t, strings.HasPrefix(payload, frameMagic), stored != payload, "no bytes if there is none")
		}
	})
}

// FuzzHeader_AnyBytes: any bytes are read without a panic. They are a plain payload, unless they
// are exactly what is written for a header and a payload.
func FuzzHeader_AnyBytes(f *testing.F) {
	true1 := Pack("", map[string]string{"a": "1", "b": ""}, time.UnixMicro(7), []byte("p"))
	f.Add(true1)
	f.Add(strings.Replace(true1, "\x017", "\x01x", 1)) // a header of an earlier build
	f.Add(true1[:len(true1)-2])
	f.Add("")
	f.Add(frameMagic)
	f.Add(frameMagic + "\x00" + frameMagic)
	for _, hostile := range hostileFrames() {
		f.Add(hostile)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		kind, header, expires, payload := Unpack(stored)
		if kind == "" && header == nil && expires.IsZero() && string(payload) == stored {
			return
		}
		require.LessOrEqual(t, len(header), MaxHeaders)
		require.Equal(t, stored, Pack(kind, header, expires, payload), "there is one frame for each kind, header, end and payload")
	})
}

// hostileFrames are payloads that begin like frames, and are none.
func hostileFrames() map[string]string {
	size := func(n uint64) string { return string(binary.AppendUvarint(nil, n)) }
	sized := func(s string) string { return size(uint64(len(s))) + s }
	frame := func(pairs string) string { return frameMagic + sized(pairs) + "p" }
	pair := func(key, value string) string { return sized(key) + sized(value) }
	var many strings.Builder
	for i := range MaxHeaders + 1 {
		many.WriteString(pair(fmt.Sprintf("%03d", i), ""))
	}
	return map[string]string{
		"magic alone":             frameMagic,
		"another format":          frameMagic[:4] + "\x02" + sized(pair("k", "v")) + "p",
		"magic cut":               frameMagic[:4],
		"no pairs, no need":       frame(""),
		"pairs beyond the end":    frameMagic + size(9) + pair("k", "v"),
		"a size beyond all":       frameMagic + size(1<<63) + pair("k", "v"),
		"the largest size":        frameMagic + size(1<<64-1),
		"a size that never ends":  frameMagic + strings.Repeat("\xff", 20),
		"a size cut":              frameMagic + "\x80",
		"a size with zeros":       frameMagic + "\x84\x00" + pair("k", "v") + "p",
		"key's size with zeros":   frame("\x81\x00k" + sized("v")),
		"a key alone":             frame(sized("k")),
		"key beyond the pairs":    frame(size(200) + "k"),
		"value beyond the pairs":  frame(sized("k") + size(200) + "v"),
		"value into the payload":  frame(sized("k") + size(2) + "v"),
		"an empty key":            frame(pair("", "v")),
		"a key twice":             frame(pair("k", "1") + pair("k", "2")),
		"keys that descend":       frame(pair("l", "1") + pair("k", "2")),
		"a key that is too long":  frame(pair(strings.Repeat("k", MaxHeaderKey+1), "v")),
		"too many pairs":          frame(many.String()),
		"bytes behind the pairs":  frame(pair("k", "v") + "\x80"),
		"a kind of no bytes":      frame(pair(KindKey, "")),
		"a kind that is too long": frame(pair(KindKey, strings.Repeat("k", MaxHeaderKey+1))),
		"a kind twice":            frame(pair(KindKey, "a") + pair(KindKey, "b")),
		"pairs of a frame of one": frameMagic + sized(pair("k", "v"))[:3],
	}
}

func TestHeader_HostileFramesArePayloads(t *testing.T) {
	for name, hostile := range hostileFrames() {
		kind, header, expires, payload := Unpack(hostile)
		require.True(t, expires.IsZero(), name)
		require.Empty(t, kind, name)
		require.Nil(t, header, name)
		require.Equal(t, hostile, string(payload), name)
	}
	longest := map[string]string{strings.Repeat("k", MaxHeaderKey): "v"}
	for i := range MaxHeaders - 1 {
		longest[fmt.Sprint(i)] = ""
	}
	kind, header, _, payload := Unpack(Pack("", longest, time.Time{}, nil))
	require.Empty(t, kind)
	require.Equal(t, longest, header)
	require.Nil(t, payload)
}

// A task without a header costs the copy of its payload, and no more; a kind costs its bytes.
func TestHeader_CostsNothingUnused(t *testing.T) {
	given := []byte(strings.Repeat("x", 100))
	stored := Pack("", nil, time.Time{}, given)
	require.Equal(t, string(given), stored)
	var header map[string]string
	var payload []byte
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { stored = Pack("", nil, time.Time{}, given) }))
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { _, header, _, payload = Unpack(stored) }))
	require.Nil(t, header)
	require.Equal(t, given, payload)
	kind := "email"
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { stored = Pack(kind, nil, time.Time{}, given) }))
	require.EqualValues(t, 2, testing.AllocsPerRun(100, func() { kind, header, _, payload = Unpack(stored) }), "the kind needs no map")
	require.Equal(t, "email", kind)
	require.Nil(t, header)
}
