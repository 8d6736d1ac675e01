package rdma

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// query keeps the device open during a query.
func (d *Device) query(verb string, ask func() error) error {
	if err := d.use(verb); err != nil {
		return err
	}
	defer d.done()
	return wrap(verb, d.name, ask())
}

// Query returns the attributes of the device.
//
// C: ibv_query_device
//
// Man: ibv_query_device(3)
func (d *Device) Query() (*ibv.DeviceAttr, error) {
	a := new(ibv.DeviceAttr)
	return a, d.query("ibv_query_device", func() error { return libibverbs.QueryDevice(d.c, a) })
}

// QueryEx returns attributes of the device that Query lacks. Attributes that the device does not know are 0.
//
// C: ibv_query_device_ex
//
// Man: ibv_query_device_ex(3)
func (d *Device) QueryEx() (*ibv.DeviceAttrEx, error) {
	a := new(ibv.DeviceAttrEx)
	return a, d.query("ibv_query_device_ex", func() error { return libibverbs.QueryDeviceEx(d.c, nil, a) })
}

// Clock reads the clock of completion timestamps, in ticks. hca_core_clock of QueryEx is its frequency in kHz.
//
// C: ibv_query_rt_values_ex
//
// Man: ibv_query_rt_values_ex(3)
func (d *Device) Clock() (ticks uint64, err error) {
	v := &ibv.ValuesEx{CompMask: ibv.VALUES_MASK_RAW_CLOCK}
	err = d.query("ibv_query_rt_values_ex", func() error { return libibverbs.QueryRTValuesEx(d.c, v) })
	return uint64(v.RawClock.TvSec)*uint64(time.Second) + uint64(v.RawClock.TvNsec), err
}

// Port returns the state and the limits of a port; ports count from 1.
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

// ActivePort returns the first active port, or an error with the states of all ports.
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

// PortSpeed returns the speed of a port's link in Mbit/s.
//
// C: ibv_query_port_speed
//
// Man: ibv_query_port_speed(3)
func (d *Device) PortSpeed(port uint8) (mbps uint64, err error) {
	const unit = 100 // the verb's unit
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
