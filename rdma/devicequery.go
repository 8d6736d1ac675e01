package rdma

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// query holds the device while a question is asked.
func (d *Device) query(verb string, ask func() error) error {
	if err := d.use(verb); err != nil {
		return err
	}
	defer d.done()
	return wrap(verb, d.name, ask())
}

// Query asks what the device can do.
//
// C: ibv_query_device
//
// Man: ibv_query_device(3)
func (d *Device) Query() (*ibv.DeviceAttr, error) {
	a := new(ibv.DeviceAttr)
	return a, d.query("ibv_query_device", func() error { return libibverbs.QueryDevice(d.c, a) })
}

// QueryEx asks what the device can do beyond what Query tells. What the device does not know of is 0.
//
// C: ibv_query_device_ex
//
// Man: ibv_query_device_ex(3)
func (d *Device) QueryEx() (*ibv.DeviceAttrEx, error) {
	a := new(ibv.DeviceAttrEx)
	return a, d.query("ibv_query_device_ex", func() error { return libibverbs.QueryDeviceEx(d.c, nil, a) })
}

// Clock reads the clock that completions with timestamps are stamped by, in its ticks: hca_core_clock of QueryEx says how many make a
// second, in kHz.
//
// C: ibv_query_rt_values_ex
//
// Man: ibv_query_rt_values_ex(3)
func (d *Device) Clock() (ticks uint64, err error) {
	v := &ibv.ValuesEx{CompMask: ibv.VALUES_MASK_RAW_CLOCK}
	err = d.query("ibv_query_rt_values_ex", func() error { return libibverbs.QueryRTValuesEx(d.c, v) })
	return uint64(v.RawClock.TvSec)*uint64(time.Second) + uint64(v.RawClock.TvNsec), err
}

// Port asks for the state and the limits of a port; ports count from 1.
//
// C: ibv_query_port
//
// Man: ibv_query_port(3)
func (d *Device) Port(port uint8) (*ibv.PortAttr, error) {
	a := new(ibv.PortAttr)
	err := d.query("ibv_query_port", func() error { return libibverbs.QueryPort(d.c, port, a) })
	if err != nil {
		if attr, err2 := d.Query(); err2 == nil && (port < 1 || port > attr.PhysPortCnt) {
			err = invalid("ibv_query_port", d.name, "there is no port %d; ports are 1 to %d", port, attr.PhysPortCnt)
		}
	}
	return a, err
}

// ActivePort is the first port that is active, or an error that says what state the others are in.
func (d *Device) ActivePort() (uint8, *ibv.PortAttr, error) {
	attr, err := d.Query()
	if err != nil {
		return 0, nil, err
	}
	states := ""
	for n := uint8(1); n >= 1 && n <= attr.PhysPortCnt; n++ {
		port, err := d.Port(n)
		if err != nil {
			return 0, nil, err
		}
		if port.State == ibv.PORT_ACTIVE {
			return n, port, nil
		}
		states += fmt.Sprintf(", port %d is %v", n, port.State)
	}
	return 0, nil, invalid("", d.name, "no port is active%s: is its network interface up?", states)
}

// PortSpeed is the speed of a port's link in Mbit/s.
//
// C: ibv_query_port_speed
//
// Man: ibv_query_port_speed(3)
func (d *Device) PortSpeed(port uint8) (mbps uint64, err error) {
	const unit = 100 // the verb counts in these
	var speed uint64
	err = d.query("ibv_query_port_speed", func() error { return libibverbs.QueryPortSpeed(d.c, uint32(port), &speed) })
	return speed * unit, err
}

// PKey reads an entry of a port's table of partition keys.
//
// C: ibv_query_pkey
//
// Man: ibv_query_pkey(3)
func (d *Device) PKey(port uint8, index int) (ibv.BE16, error) {
	key := new(ibv.BE16)
	err := d.query("ibv_query_pkey", func() error { return libibverbs.QueryPKey(d.c, port, index, key) })
	return *key, err
}

// PKeyIndex finds a partition key in a port's table.
//
// C: ibv_get_pkey_index
//
// Man: ibv_get_pkey_index(3)
func (d *Device) PKeyIndex(port uint8, key ibv.BE16) (index int, err error) {
	err = d.query("ibv_get_pkey_index", func() (err error) {
		index, err = libibverbs.GetPKeyIndex(d.c, port, key)
		return err
	})
	return index, err
}
