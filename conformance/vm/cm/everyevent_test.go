// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/rdmacm"
)

// provoked names the test that provokes each event on Soft-RoCE, or the reason why no test can.
var provoked = map[rdmacm.CMEventType]struct {
	by  func(*testing.T)
	why string
}{
	rdmacm.CM_EVENT_ADDR_RESOLVED:     {by: TestConnectionEvents},
	rdmacm.CM_EVENT_ADDR_ERROR:        {by: TestEventAddressError},
	rdmacm.CM_EVENT_ROUTE_RESOLVED:    {by: TestConnectionEvents},
	rdmacm.CM_EVENT_CONNECT_REQUEST:   {by: TestConnectionEvents},
	rdmacm.CM_EVENT_CONNECT_RESPONSE:  {by: TestEventsWithoutQueuePair},
	rdmacm.CM_EVENT_CONNECT_ERROR:     {by: TestEventOfBrokenQueuePair},
	rdmacm.CM_EVENT_UNREACHABLE:       {by: TestEventUnreachable},
	rdmacm.CM_EVENT_REJECTED:          {by: TestRejectionEvents},
	rdmacm.CM_EVENT_ESTABLISHED:       {by: TestConnectionEvents},
	rdmacm.CM_EVENT_DISCONNECTED:      {by: TestConnectionEvents},
	rdmacm.CM_EVENT_TIMEWAIT_EXIT:     {by: TestConnectionEvents},
	rdmacm.CM_EVENT_DEVICE_REMOVAL:    {by: TestEventDeviceRemoval},
	rdmacm.CM_EVENT_MULTICAST_JOIN:    {by: TestMulticastEvents},
	rdmacm.CM_EVENT_MULTICAST_ERROR:   {by: TestMulticastEvents},
	rdmacm.CM_EVENT_ADDR_CHANGE:       {by: TestEventAddressChange},
	rdmacm.CM_EVENT_ADDRINFO_RESOLVED: {by: TestEventOfAddrInfo}, // with rdma-core 65
	rdmacm.CM_EVENT_USER:              {by: TestUserEvent},       // with rdma-core 65
	rdmacm.CM_EVENT_ROUTE_ERROR: {why: "on RoCE there is no route query: an invalid route is an error of " +
		"rdma_resolve_route itself; " +
		"the event is the answer of InfiniBand's subnet administration to a path query. The software device has a " +
		"fault for it: TestSoftAddressAndRouteErrors of rdma/cm"},
	rdmacm.CM_EVENT_ADDRINFO_ERROR: {why: "the event is the answer of InfiniBand's subnet administration to RAI_SA, " +
		"which RoCE lacks: TestEventOfAddrInfo checks the error"},
	rdmacm.CM_EVENT_INTERNAL: {why: "the library does not pass it on: programs get " +
		"RDMA_CM_EVENT_ADDRINFO_RESOLVED instead"},
}

func TestEveryEventIsProvoked(t *testing.T) {
	n := rdmacm.CMEventType(0)
	for ; strings.HasPrefix(n.String(), "RDMA_CM_EVENT_"); n++ {
		p, ok := provoked[n]
		assert.True(t, ok && (p.by != nil) != (p.why != ""), "%v needs a test or a reason", n)
	}
	assert.Len(t, provoked, int(n))
}
