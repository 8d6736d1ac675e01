// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/headers"
)

// page reads a man page of the primary release from headers/cache, which is not committed.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../headers/cache", headers.Primary("rdma-core"), "man", name))
	if os.IsNotExist(err) {
		t.Skipf("%s is not in headers/cache (make headers downloads it): the tables were not compared with it", name)
	}
	require.NoError(t, err)
	return string(text)
}

// items returns the terms of the tagged paragraphs of a page.
func items(text, pattern string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^\.(?:B|IP) (`+pattern+`)\b`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// given returns the access flags that are valid for a use, with a capability or without.
func given(use ibv.AccessUse) []string {
	var all []string
	for bit := range 32 {
		flag := ibv.AccessFlags(1) << bit
		if a := ibv.AccessFlag(use, flag).Answer; a == ibv.AnswerYes || a == ibv.AnswerNeedsCapability {
			all = append(all, flag.String())
		}
	}
	return all
}

// TestAccessPages compares the flags in the pages with those in the table.
func TestAccessPages(t *testing.T) {
	reg := page(t, "ibv_reg_mr.3")
	listed, prose, found := strings.Cut(reg, "\nIf\n") // the list ends before the rule about local write
	require.True(t, found)
	flags := items(listed, `IBV_ACCESS_[A-Z_]+`)
	require.Contains(t, prose[:strings.Index(prose, ".PP")], "IBV_ACCESS_LOCAL_WRITE")
	assert.ElementsMatch(t, flags, given(ibv.AccessRegMR))
	dmabuf := prose[strings.Index(prose, "only the following flags"):]
	dmabuf = dmabuf[:strings.Index(dmabuf, ".PP")]
	assert.ElementsMatch(t, regexp.MustCompile(`IBV_ACCESS_[A-Z_]+`).FindAllString(dmabuf, -1),
		given(ibv.AccessRegDMABufMR))
	bind := items(page(t, "ibv_bind_mw.3"), `IBV_ACCESS_[A-Z_]+`)
	assert.ElementsMatch(t, bind, given(ibv.AccessBindMW1))
	assert.ElementsMatch(t, bind, given(ibv.AccessBindMW2))
}

// TestErrorFieldsPage compares the four fields with the page.
func TestErrorFieldsPage(t *testing.T) {
	text := page(t, "ibv_poll_cq.3")
	_, rest, found := strings.Cut(text, "only the following attributes are valid:")
	require.True(t, found)
	list, _, _ := strings.Cut(rest, ".SH")
	for field := range ibv.WCFieldTMInfo + 1 {
		named := regexp.MustCompile(`\b` + field.String() + `\b`).MatchString(list)
		assert.Equal(t, named, ibv.WCFieldValidity(field, ibv.WCKindError).Answer == ibv.AnswerYes, "%v", field)
	}
}

// TestAsyncEventPage compares the object of every event with the page.
func TestAsyncEventPage(t *testing.T) {
	headings := map[ibv.AsyncElement]string{
		ibv.AsyncElementQP: "QP", ibv.AsyncElementCQ: "CQ", ibv.AsyncElementSRQ: "SRQ", ibv.AsyncElementWQ: "WQ",
		ibv.AsyncElementPort: "Port", ibv.AsyncElementDevice: "CA",
	}
	under, heading := map[string]string{}, ""
	for line := range strings.Lines(page(t, "ibv_get_async_event.3")) {
		if m := regexp.MustCompile(`^\.I (\w+) events:`).FindStringSubmatch(line); m != nil {
			heading = m[1]
		}
		for _, name := range items(line, `IBV_EVENT_[A-Z_]+`) {
			under[name] = heading
		}
	}
	assert.Len(t, under, int(ibv.EVENT_DEVICE_SPEED_CHANGE)+1)
	for event := range ibv.EVENT_DEVICE_SPEED_CHANGE + 1 {
		assert.Equal(t, under[event.String()], headings[ibv.AsyncEventMeaning(event).Element], "%v", event)
	}
}

// TestCMPages compares the events and the lengths with the pages.
func TestCMPages(t *testing.T) {
	var known []string
	for event := range rdmacm.CM_EVENT_INTERNAL + 1 {
		if rdmacm.EventMeaning(event).Answer == rdmacm.AnswerYes {
			known = append(known, event.String())
		}
	}
	assert.ElementsMatch(t, items(page(t, "rdma_get_cm_event.3"), `RDMA_CM_EVENT_[A-Z_]+`), known)
	lengths := regexp.MustCompile(`(\d+)\s+bytes\s+for\s+RDMA_PS_TCP,\s+or\s+(\d+)\s+bytes\s+for\s+RDMA_PS_UDP`)
	for name, call := range map[string]rdmacm.Call{"rdma_connect.3": rdmacm.CallConnect,
		"rdma_accept.3": rdmacm.CallAccept} {
		m := lengths.FindStringSubmatch(page(t, name))
		require.NotNil(t, m, name)
		assert.Equal(t, m[1:], []string{
			fmt.Sprint(rdmacm.PrivateDataLimit(call, rdmacm.ServiceIB).Bytes),
			fmt.Sprint(rdmacm.PrivateDataLimit(call, rdmacm.ServiceUD).Bytes),
		}, name)
	}
}

// TestMemoryWindowPage compares the queue pair types for binding with the page.
func TestMemoryWindowPage(t *testing.T) {
	m := regexp.MustCompile(`Transport Service Type must be either ([A-Z_, ]+) or ([A-Z_]+)`).FindStringSubmatch(page(t,
		"ibv_bind_mw.3"))
	require.NotNil(t, m)
	listed := append(strings.Split(strings.TrimSuffix(m[1], ","), ", "), m[2])
	var known []string
	for _, qpt := range allTypes {
		if ibv.BindMWValidity(ibv.MW_TYPE_1, ibv.BindMWVerb, qpt).Answer == ibv.AnswerNeedsCapability {
			known = append(known, strings.TrimPrefix(qpt.String(), "IBV_QPT_"))
		}
	}
	assert.ElementsMatch(t, listed, known)
}
