// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/runtime"
)

// conventions are the error conventions of C functions by name: the rows from which the Go functions are generated,
// themselves derived from man pages and C code.
var conventions = sync.OnceValue(func() map[string][]string {
	text, err := os.ReadFile("../../gen/rules/conventions.txt")
	if err != nil {
		panic(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0][0] != '#' {
			all[words[0]] = words[1:]
		}
	}
	return all
})

// convention returns the kind of a function's row. For a special one it is the kind that yields the right error, if the
// row names one.
func convention(name string) string {
	row := conventions()[name]
	if len(row) == 0 {
		return ""
	}
	if last := len(row) - 1; row[0] == "special" && last > 1 && row[last-1] == "as" {
		return map[string]string{"errno": "errno", "negative": "negative-errno"}[row[last]]
	}
	return row[0]
}

// answer is the result of the C function.
type answer struct {
	result uint64
	errno  runtime.Errno
}

// failure returns the errno that Go has to report for C's result, and whether C failed.
func (a answer) failure(kind string, long bool) (runtime.Errno, bool) {
	r := int64(int32(a.result))
	if long {
		r = int64(a.result)
	}
	number := func(e int64) runtime.Errno {
		if e == -1 && a.errno != 0 {
			return a.errno
		}
		return runtime.Errno(max(e, -e))
	}
	switch kind {
	case "errno":
		return number(r), r != 0
	case "minus-one":
		return a.errno, r == -1
	case "minus-one-status":
		if r == -1 {
			return a.errno, true
		}
		return number(r), r != 0
	case "negative-errno":
		return number(r), r < 0
	case "null":
		return a.errno, a.result == 0
	case "void", "value", "bool", "null-ok":
		return 0, false
	}
	panic("unknown kind of function: " + kind)
}

// check compares the result of a Go function with that of C: the error, or without one the value. missing means that C
// had nothing to call.
func (a answer) check(f *model.Func, kind string, missing bool, got []reflect.Value) error {
	var err error
	if n := len(got); n > 0 && got[n-1].Type() == reflect.TypeFor[error]() {
		last := got[n-1]
		err, _ = last.Interface().(error)
		got = got[:n-1]
	}
	if missing {
		if !errors.Is(err, runtime.ErrNotSupported) || !errors.Is(err, syscall.EOPNOTSUPP) {
			return fmt.Errorf("there is no function to call, but the error is %v", err)
		}
		return nil
	}
	result, perr := model.ParseType(f.Result)
	if perr != nil {
		return perr
	}
	errno, failed := a.failure(kind, result.Base != "int" && !strings.HasPrefix(result.Base, "enum"))
	switch {
	case failed:
		var call *runtime.CallError
		if !errors.As(err, &call) || call.Errno != errno || call.Function == "" {
			return fmt.Errorf("C failed with %d (%v), but the error is %v", errno, errno, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("C did not fail, but the error is %v", err)
	case len(got) == 0:
		return nil
	}
	return a.value(kind, got[0])
}

func (a answer) value(kind string, got reflect.Value) error {
	var want, have any
	switch got.Kind() {
	case reflect.Pointer:
		want, have = uintptr(a.result), got.Pointer()
	case reflect.String:
		want, have = "", got.String()
		if a.result != 0 {
			want = cstring(uintptr(a.result))
		}
	case reflect.Bool:
		want, have = a.result != 0, got.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		want, have = truncated(a.result, got).Int(), got.Int()
		if got.Kind() == reflect.Int { // C's int
			want = int64(int32(a.result))
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		want, have = truncated(a.result, got).Uint(), got.Uint()
	default:
		return fmt.Errorf("a result of type %v", got.Type())
	}
	if want != have {
		return fmt.Errorf("C returned %#x, Go %v", want, have)
	}
	return nil
}

// truncated converts a number to the type of another value.
func truncated(v uint64, like reflect.Value) reflect.Value {
	return reflect.ValueOf(v).Convert(like.Type())
}
