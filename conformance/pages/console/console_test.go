// SPDX-License-Identifier: BSD-2-Clause

package console

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const page = "# Page\n\n```sh\n$ not this\n```\n\n```console\n$ serve &\n$ ask -n 2\nHOST  TIME\nhere  …\n…\nend\n$ true\n" +
	"```\n\n<!-- numbers vary -->\n```console\n$ count\na    12  0xff µs\nb …\n```\n"

func TestSessions(t *testing.T) {
	all, err := Sessions(page)
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, 7, all[0].Line)
	assert.Equal(t, []Command{{"serve", "", true, 8}, {"ask -n 2", "HOST  TIME\nhere  …\n…\nend\n", false, 9},
		{"true", "", false, 14}}, all[0].Commands)
	fits := func(session, command int, printed string) bool {
		return all[session].Fits(&all[session].Commands[command], printed)
	}
	assert.True(t, fits(0, 1, "HOST  TIME\nhere  3 µs\nend\n"))
	assert.True(t, fits(0, 1, "HOST  TIME\nhere  3 µs\nmore\nand more\nend\n"))
	assert.False(t, fits(0, 1, "HOST  TIME\nhere  3 µs\nend\nmore\n"))
	assert.False(t, fits(0, 1, "HOST  TIME\nthere  3 µs\nend\n"))
	assert.False(t, fits(0, 1, "HOST TIME\nhere  3 µs\nend\n"), "here spaces count")
	assert.True(t, fits(0, 2, ""))
	assert.False(t, fits(0, 2, "a word\n"))
	assert.True(t, fits(1, 0, "a 1.25 0x1 µs\nb whatever\nit is\n"))
	assert.False(t, fits(1, 0, "a few 0x1 µs\nb c\n"))
	_, err = Sessions("```console\nno command\n```\n")
	assert.ErrorContains(t, err, "line 2")
	_, err = Sessions("```console\n$ x\n")
	assert.ErrorContains(t, err, "not closed")
}
