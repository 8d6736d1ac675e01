// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"reflect"

	"github.com/goverbs/goverbs/gen/model"
)

// mergeHeaders merges the headers of another target into all. Everything except sizes, offsets and alignments must be
// equal.
func mergeHeaders(all, more []model.Header, target string) error {
	return mergeValue(reflect.ValueOf(all), reflect.ValueOf(more), target, "headers")
}

var perType = reflect.TypeFor[model.Per]()

// mergeValue walks two values of the model in parallel; at is the path to them.
func mergeValue(a, b reflect.Value, target, at string) error {
	if a.Type() == perType {
		into := a.Addr().Interface().(*model.Per)
		into.Set(target, b.Interface().(model.Per).Default)
		return nil
	}
	switch a.Kind() {
	case reflect.Slice:
		if a.Len() != b.Len() {
			return fmt.Errorf("%s: %d and %d entries", at, a.Len(), b.Len())
		}
		for i := range a.Len() {
			if err := mergeValue(a.Index(i), b.Index(i), target, at+nameOf(a.Index(i), i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if err := mergeValue(a.Field(i), b.Field(i), target, at+"."+a.Type().Field(i).Name); err != nil {
				return err
			}
		}
	case reflect.Pointer:
		if a.IsNil() != b.IsNil() {
			return fmt.Errorf("%s: only one has it", at)
		}
		if !a.IsNil() {
			return mergeValue(a.Elem(), b.Elem(), target, at)
		}
	default:
		if !a.Equal(b) {
			return fmt.Errorf("%s: %v and %v; only sizes and offsets may differ between targets", at, a, b)
		}
	}
	return nil
}

// nameOf returns the C name of a slice element, if it has one.
func nameOf(v reflect.Value, i int) string {
	if v.Kind() == reflect.Struct {
		for _, field := range []string{"Name", "Tag"} {
			if f := v.FieldByName(field); f.IsValid() && f.Kind() == reflect.String && f.String() != "" {
				return " " + f.String()
			}
		}
	}
	return fmt.Sprintf("[%d]", i)
}
