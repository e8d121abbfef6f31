//! The driver as the orchestrator sees it: every call over a real unix socket, against masters in memory and an agent
//! whose devices are loop devices over files. What mounts needs root, and says so when it is skipped.

#[cfg(test)]
mod controller;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod node;
#[cfg(test)]
mod socket;
#[cfg(test)]
mod support;
