// SPDX-License-Identifier: BSD-2-Clause

package printing

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/witness"
)

// TestEveryName checks that every enumerator of every header can be parsed by name, with and without its prefix, and
// that printed values can be parsed.
func TestEveryName(t *testing.T) {
	types := map[reflect.Type]bool{}
	for _, p := range append(witness.All(), witness.UAPI) {
		for _, c := range p.Constants {
			if _, ok := c.Value.(fmt.Stringer); !ok {
				assert.Equal(t, "-", c.Enum, "%s prints as a number", c.Name)
				continue
			}
			types[reflect.TypeOf(c.Value)] = true
			_, short, _ := strings.Cut(c.Name, "_")
			for _, text := range []string{c.Name, short, strconv.Quote(c.Name), fmt.Sprint(reflect.ValueOf(c.Value))} {
				assert.Equal(t, c.Value, read(t, c.Value, text), "%s of %s", text, c.Name)
			}
			assert.Equal(t, c.Value, roundTrip(t, c.Value), c.Name)
		}
	}
	assert.Greater(t, len(types), 100)
	for typ := range types { // values without names
		for _, n := range []int64{0, 1, 3, 77, 0x12345678, math.MaxInt32} {
			v := reflect.ValueOf(n).Convert(typ).Interface()
			assert.Equal(t, v, roundTrip(t, v), "%v(%d)", typ, n)
			if bits := typ.Bits(); bits < 32 && n>>bits != 0 {
				to := reflect.New(typ).Interface().(encoding.TextUnmarshaler)
				assert.ErrorContains(t, to.UnmarshalText(strconv.AppendInt(nil, n, 10)), "a number that fits", "%v(%d)",
					typ, n)
				continue
			}
			assert.Equal(t, v, read(t, v, strconv.FormatInt(n, 10)), "%v(%d)", typ, n)
			assert.Equal(t, v, read(t, v, fmt.Sprintf("0x%x", n)), "%v(%d)", typ, n)
		}
		zero := reflect.New(typ)
		assert.Error(t, zero.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte("NO_SUCH_NAME")), "%v", typ)
	}
}

// read parses a value of v's type from text, and from JSON if it is JSON.
func read(t *testing.T, v any, text string) any {
	t.Helper()
	to := reflect.New(reflect.TypeOf(v))
	if strings.HasPrefix(text, `"`) {
		require.NoError(t, json.Unmarshal([]byte(text), to.Interface()), text)
	} else {
		require.NoError(t, to.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)), text)
	}
	return to.Elem().Interface()
}

// roundTrip converts a value to JSON and back, as a value and as the key of a map, and through its String.
func roundTrip(t *testing.T, v any) any {
	t.Helper()
	m := reflect.MakeMap(reflect.MapOf(reflect.TypeOf(v), reflect.TypeOf(v)))
	m.SetMapIndex(reflect.ValueOf(v), reflect.ValueOf(v))
	text, err := json.Marshal(m.Interface())
	require.NoError(t, err)
	back := reflect.New(m.Type())
	require.NoError(t, json.Unmarshal(text, back.Interface()), string(text))
	assert.Equal(t, m.Interface(), back.Elem().Interface())
	return read(t, v, v.(fmt.Stringer).String())
}

// TestStatusesAsTheLibrary checks that exactly those statuses, events, states and node types have names that the C
// library knows, although its phrases differ.
func TestStatusesAsTheLibrary(t *testing.T) {
	if err := libibverbs.Library.Open(); err != nil {
		t.Skipf("no libibverbs here: %v", err)
	}
	compare := func(name string, of func(v uint32) (fmt.Stringer, string, error)) {
		_, unknown, err := of(1000)
		require.NoError(t, err)
		named := 0
		for v := range uint32(64) {
			value, phrase, err := of(v)
			require.NoError(t, err)
			if isNamed := !strings.Contains(value.String(), "("); isNamed {
				named++
			} else {
				assert.Equal(t, unknown, phrase, "%s %d has no name", name, v)
			}
			if phrase != unknown {
				assert.NotContains(t, value.String(), "(", "%s %d: the library prints %q", name, v, phrase)
			}
		}
		assert.Greater(t, named, 3, name)
	}
	compare("status", func(v uint32) (fmt.Stringer, string, error) {
		s, err := libibverbs.WCStatusStr(ibv.WCStatus(v))
		return ibv.WCStatus(v), s, err
	})
	compare("event", func(v uint32) (fmt.Stringer, string, error) {
		s, err := libibverbs.EventTypeStr(ibv.EventType(v))
		return ibv.EventType(v), s, err
	})
	compare("state of a port", func(v uint32) (fmt.Stringer, string, error) {
		s, err := libibverbs.PortStateStr(ibv.PortState(v))
		return ibv.PortState(v), s, err
	})
}
