// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIoctlsRoundTrip(t *testing.T) {
	s := &IoctlSchema{Kernel: "6.1", Source: "Linux 6.1.0", Attrs: []IoctlAttr{
		{Module: "m", Object: "O", Method: "M", ObjectID: 1, MethodID: 2, ID: 3, Kind: IoctlIn, Min: 4, Max: 8, Mandatory: true, Copied: true},
		{Module: "m", Object: "O", Method: "M", ObjectID: 1, MethodID: 2, ID: 4, Kind: IoctlHandle, Access: IoctlNew, Target: 9},
		{Module: "m", Object: "O", Method: "M", ObjectID: 1, MethodID: 2, ID: 5, Kind: IoctlEnum, Elements: []IoctlRange{{}, {2, 4}}},
	}}
	require.NoError(t, s.Check())
	text := s.Encode()
	again, err := ParseIoctls("6.1.csv", text)
	require.NoError(t, err)
	assert.Equal(t, s, again)
	for name, c := range map[string]struct{ old, new, want string }{
		"source":    {"# Linux 6.1.0", "# ", "does not name the kernel"},
		"module":    {"\nm,O,1,M,2,4", "\nM,O,1,M,2,4", "not the name of a module"},
		"kind":      {",in,", ",into,", "unknown kind 255"},
		"access":    {",new,", ",old,", "unknown access 255"},
		"order":     {",4,8,", ",9,8,", "minimum 9 exceeds maximum 8"},
		"number":    {",4,8,", ",04,8,", "not in the format of gen ioctls"},
		"flag":      {"mandatory|", "mandatory|more|", "not in the format of gen ioctls"},
		"duplicate": {",2,4,handle", ",2,3,handle", "duplicate attribute 3"},
		"columns":   {",enum,-,", ",enum,", "wrong number of fields"},
	} {
		require.Contains(t, string(text), c.old, name)
		_, err := ParseIoctls("6.1.csv", []byte(strings.Replace(string(text), c.old, c.new, 1)))
		assert.ErrorContains(t, err, c.want, name)
	}
	_, err = ParseIoctls("notes.txt", text)
	assert.ErrorContains(t, err, "want a name KERNEL.csv")
}
