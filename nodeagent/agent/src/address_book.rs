//! Where every device of the cluster can be asked, as one core knows it.

use api_types::master::{DeviceAddress, MasterClient};
use api_types::{Clock, DeviceId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The shortest time between two questions to the masters.
const REFRESH_MIN: Duration = Duration::from_millis(500);

/// See the module. Refreshed when a device isn't known or isn't where it was, never on a timer.
pub(crate) struct AddressBook {
    masters: Rc<dyn MasterClient>,
    clock: Rc<dyn Clock>,
    entries: RefCell<BTreeMap<DeviceId, DeviceAddress>>,
    asked: Cell<Option<Duration>>,
    asking: Cell<bool>,
}

impl AddressBook {
    pub(crate) fn new(masters: Rc<dyn MasterClient>, clock: Rc<dyn Clock>) -> Rc<Self> {
        Rc::new(AddressBook { masters, clock, entries: RefCell::default(), asked: Cell::new(None), asking: Cell::new(false) })
    }

    /// Where a device is, if that is known.
    pub(crate) fn endpoint(&self, device: DeviceId) -> Option<String> {
        self.entries.borrow().get(&device).map(|entry| entry.endpoint.clone())
    }

    /// Waits until something is known, so that a volume that is opened right after the start doesn't take every device
    /// for one that is gone. Gives up when the masters do: then the volume's own errors say what is wrong.
    pub(crate) async fn load(&self) {
        if !self.entries.borrow().is_empty() {
            return;
        }
        match self.masters.devices().await {
            Ok(devices) => self.set(devices),
            Err(error) => tracing::warn!(%error, "could not learn where the devices are"),
        }
    }

    fn set(&self, devices: Vec<DeviceAddress>) {
        *self.entries.borrow_mut() = devices.into_iter().map(|entry| (entry.device, entry)).collect();
    }

    /// Asks the masters again in the background, unless that was done just now.
    pub(crate) fn refresh(self: &Rc<Self>) {
        let now = self.clock.now();
        let too_soon = self.asked.get().is_some_and(|asked| now < asked + REFRESH_MIN);
        if self.asking.get() || too_soon {
            return;
        }
        self.asking.set(true);
        self.asked.set(Some(now));
        let book = Rc::clone(self);
        tokio::task::spawn_local(async move {
            match book.masters.devices().await {
                Ok(devices) => book.set(devices),
                Err(error) => tracing::debug!(%error, "could not learn where the devices are"),
            }
            book.asking.set(false);
        });
    }
}
